"""What sessions generate with: SGLang's ``/generate`` over HTTP, checked on both sides."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
import numpy as np

from miles_core.engine.http import describe, refusal, server_message
from miles_core.engine.parsing import check_sampled, parse_generation
from miles_core.engine.prompt import check_prompt
from miles_core.engine.streaming import EventSplitter, StreamedReply
from miles_core.errors import EngineError, RoutingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from miles_core.types import GenerateRequest, Generation, RoutingSpec

Failure: TypeAlias = EngineError | RoutingError

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0)


class HttpEngineClient:
    """Implements ``EngineClient`` against one URL, an engine's or a router's.

    ``routing`` is the routing shape of the served model, ``None`` for dense ones. Cancelling a call closes its
    connection, which aborts the request in the engine. There is no time-out but 10 s for the TCP connection: long
    generations are normal. ``extra_key()``, where given, salts the engine's prefix cache: a request matches prefixes of
    requests with the same key only. SGLang needs it, since prefixes of old weights may stay in its cache.
    """

    def __init__(
        self,
        base_url: str,
        http: aiohttp.ClientSession,
        *,
        vocab_size: int,
        context_length: int,
        routing: RoutingSpec | None,
        extra_key: Callable[[], str] | None = None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/generate"
        self._http = http
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._routing = routing
        self._extra_key = extra_key

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Generate from token ids; ``max_new_tokens`` is cut to what the context leaves.

        ``on_tokens`` gets the output ids as they come, each once and in order, from a stream that ends in the same
        generation. An aborted one may keep fewer.

        Raises:
            EngineRequestError: if the request is invalid, found here or by the engine.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine cannot be reached, failed, or answered something else than a generation.
        """
        self._check(request)
        body = {**self._body(request), **self._salt()}
        if on_tokens is not None:
            return await self._streamed(body, request, on_tokens)
        reply = await self._post(body)
        if not isinstance(reply, dict):
            raise EngineError(f"{self._url} must answer one JSON object; got {str(reply)[:200]!r}")
        return self._checked(parse_generation(reply, request, self._routing), request)

    async def _streamed(
        self, body: dict[str, Any], request: GenerateRequest, on_tokens: Callable[[Sequence[int]], None]
    ) -> Generation:
        splitter, streamed = EventSplitter(), StreamedReply(request.rid, self._vocab_size, on_tokens)
        async with self._answer({**body, "stream": True}) as response:
            async for chunk in response.content.iter_any():
                for data in splitter.feed(chunk):
                    streamed.add(data)
        generation = self._checked(parse_generation(streamed.whole(), request, self._routing), request)
        streamed.finish(generation)
        return generation

    async def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[Generation | Failure]:
        """Generate for several requests, alike in ``return_routed_experts``, by one HTTP request.

        What is wrong with one reply stands in its place. Cancelling aborts all of them.

        Raises:
            EngineRequestError: if one of the requests is invalid; none was generated then.
            EngineError: if the engine cannot be reached, failed, or did not answer each of them.
        """
        for request in requests:
            self._check(request)
        # the lowest start serves all of them: it is one number per batch on the wire
        start = min(request.routed_experts_start_len for request in requests)
        bodies = [self._body(request) for request in requests]
        joined = {key: [body[key] for body in bodies] for key in ("rid", "input_ids", "sampling_params")}
        shared = {"return_logprob": True, "return_routed_experts": requests[0].return_routed_experts}
        replies = await self._post({**joined, **shared, "routed_experts_start_len": start, **self._salt()})
        if not isinstance(replies, list) or len(replies) != len(requests):
            raise EngineError(
                f"{self._url} must answer a batch of {len(requests)} with a list of as many; "
                f"got {len(replies) if isinstance(replies, list) else type(replies).__name__}"
            )
        return [self._parsed(reply, request, start) for reply, request in zip(replies, requests, strict=True)]

    def _parsed(self, reply: Any, request: GenerateRequest, rows_from: int) -> Generation | Failure:
        try:
            return self._checked(parse_generation(reply, request, self._routing, rows_from=rows_from), request)
        except (EngineError, RoutingError) as error:
            return error

    def _checked(self, generation: Generation, request: GenerateRequest) -> Generation:
        """The generation, if the model that is trained could have sampled it."""
        check_sampled(generation.output_ids, self._vocab_size, request.rid)
        return generation

    def _check(self, request: GenerateRequest) -> None:
        # an id out of range kills a real SGLang server, so it must never leave this process
        check_prompt(request.input_ids, vocab_size=self._vocab_size, context_length=self._context_length)
        if request.return_routed_experts and self._routing is None:
            raise RoutingError(
                "routed experts were asked for, but this client knows no routing shape",
                remedy="Give the client the model's RoutingSpec, or switch routing replay off for dense models.",
            )

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling.to_wire()
        sampling["max_new_tokens"] = min(request.sampling.max_new_tokens, self._context_length - len(request.input_ids))
        body = {
            "rid": request.rid,
            "input_ids": np.asarray(request.input_ids).tolist(),
            "sampling_params": sampling,
            "return_logprob": True,
        }
        if request.return_routed_experts:
            body["return_routed_experts"] = True
            body["routed_experts_start_len"] = request.routed_experts_start_len
        return body

    def _salt(self) -> dict[str, str]:
        return {} if self._extra_key is None else {"extra_key": self._extra_key()}

    async def _post(self, body: dict[str, Any]) -> Any:
        async with self._answer(body) as response:
            raw = await response.read()
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self._url} answered something else than JSON: {raw[:200]!r}") from error

    @asynccontextmanager
    async def _answer(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request that is not refused, still to be read."""
        headers = {"content-type": "application/json"}
        try:
            async with self._http.post(self._url, data=json.dumps(body), headers=headers, timeout=_TIMEOUT) as response:
                if response.status >= 400:
                    message = server_message(await response.read())
                    raise refusal(response.status, f"{self._url} answered {response.status}: {message}")
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"no answer from {self._url}: {describe(error)}", remedy="Check that the engine and the router run."
            ) from error
