"""``POST /generate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import JSONResponse, Response, StreamingResponse

from miles_core.engine.embedded.parsing import Limits, parse_generate
from miles_core.engine.embedded.reply import to_wire
from miles_core.errors import EngineError, EngineRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from miles_core.engine.embedded.engine import EmbeddedEngine
    from miles_core.engine.embedded.parsing import GenerateBody
    from miles_core.engine.embedded.request import Generated, GenerateSpec
    from miles_core.engine.embedded.streams import RequestStream


async def generate(request: Request) -> Response:
    """Generate for one prompt or a batch, all at once or as a stream; a client that disconnects aborts its requests."""
    engine: EmbeddedEngine = request.app.state.engine
    limits = Limits(engine.vocab_size, engine.settings.context_length, engine.routing is not None)
    body = parse_generate(await read_json(request), engine.tokenizer, limits)
    if body.stream:
        return _EventStream(engine, body, engine.stream(body.specs))
    generated = await _while_connected(engine, body.specs, request.receive)
    if generated is None:
        return Response(status_code=499)
    replies = [to_wire(one, engine.tokenizer, engine.routing) for one in generated]
    return JSONResponse(replies if body.batched else replies[0])


class _EventStream(StreamingResponse):
    """Server-sent events, each with all that its request has so far; those of a batch say which they belong to.

    However it ends, also before its first event, nothing of its requests stays in the engine.
    """

    media_type = "text/event-stream"

    def __init__(self, engine: EmbeddedEngine, body: GenerateBody, stream: RequestStream) -> None:
        super().__init__(_events(engine, body, stream))
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


async def _events(engine: EmbeddedEngine, body: GenerateBody, stream: RequestStream) -> AsyncIterator[str]:
    try:
        async for index, generated in stream:
            reply = to_wire(generated, engine.tokenizer, engine.routing)
            yield _event({**reply, "index": index} if body.batched else reply)
    except EngineError as error:
        yield _event({"error": {"message": str(error), "type": "server_error", "code": 500, "retryable": True}})
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def read_json(request: Request) -> Any:
    """The body as JSON, an empty one as ``None``.

    Raises:
        EngineRequestError: if it is not JSON.
    """
    body = await request.body()
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise EngineRequestError(f"the body is not JSON: {error}") from error


async def _while_connected(
    engine: EmbeddedEngine, specs: Sequence[GenerateSpec], receive: Receive
) -> list[Generated] | None:
    """What the engine generated, or ``None`` if the client left before."""
    generated: list[Generated] | None = None
    failure: EngineError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
        try:
            generated = await engine.generate(specs)
        except EngineError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return generated


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
