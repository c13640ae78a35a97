"""``POST /generate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import JSONResponse, Response

from miles_core.engine.embedded.parsing import Limits, parse_generate
from miles_core.engine.embedded.reply import to_wire
from miles_core.errors import EngineError, EngineRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.types import Receive

    from miles_core.engine.embedded.engine import EmbeddedEngine
    from miles_core.engine.embedded.request import Finished, GenerateSpec


async def generate(request: Request) -> Response:
    """Generate for one prompt or a batch; a client that disconnects aborts its requests."""
    engine: EmbeddedEngine = request.app.state.engine
    limits = Limits(engine.vocab_size, engine.settings.context_length, engine.routing is not None)
    specs, batched = parse_generate(await read_json(request), engine.tokenizer, limits)
    finished = await _while_connected(engine, specs, request.receive)
    if finished is None:
        return Response(status_code=499)
    replies = [to_wire(one, engine.tokenizer, engine.routing) for one in finished]
    return JSONResponse(replies if batched else replies[0])


async def read_json(request: Request) -> Any:
    """The body as JSON, an empty one as ``{}``.

    Raises:
        EngineRequestError: if it is not JSON.
    """
    body = await request.body()
    try:
        return json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise EngineRequestError(f"the body is not JSON: {error}") from error


async def _while_connected(
    engine: EmbeddedEngine, specs: Sequence[GenerateSpec], receive: Receive
) -> list[Finished] | None:
    """What the engine generated, or ``None`` if the client left before."""
    finished: list[Finished] | None = None
    failure: EngineError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
        try:
            finished = await engine.generate(specs)
        except EngineError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return finished


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
