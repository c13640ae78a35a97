"""What sessions generate with: SGLang's ``/generate`` over HTTP, checked on both sides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp

from miles_core.engine.http import describe, server_message
from miles_core.engine.parsing import parse_generation
from miles_core.engine.prompt import check_prompt
from miles_core.errors import EngineError, EngineRequestError, RoutingError

if TYPE_CHECKING:
    from miles_core.types import GenerateRequest, Generation, RoutingSpec

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
# refused for the moment, not for what was asked
_TRANSIENT = frozenset({408, 429})


class HttpEngineClient:
    """Implements ``EngineClient`` against one URL, an engine's or a router's.

    ``routing`` is the routing shape of the served model, ``None`` for dense ones. Cancelling a call closes its
    connection, which aborts the request in the engine. There is no time-out but 10 s for the TCP connection: long
    generations are normal.
    """

    def __init__(
        self,
        base_url: str,
        http: aiohttp.ClientSession,
        *,
        vocab_size: int,
        context_length: int,
        routing: RoutingSpec | None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/generate"
        self._http = http
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._routing = routing

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate from token ids; ``max_new_tokens`` is cut to what the context leaves.

        Raises:
            EngineRequestError: if the request is invalid, found here or by the engine.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine cannot be reached, failed, or answered something else than a generation.
        """
        self._check(request)
        return parse_generation(await self._post(self._body(request)), request, self._routing)

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
            "input_ids": [int(token) for token in request.input_ids],
            "sampling_params": sampling,
            "return_logprob": True,
        }
        if request.return_routed_experts:
            body["return_routed_experts"] = True
            body["routed_experts_start_len"] = request.routed_experts_start_len
        return body

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        try:
            async with self._http.post(self._url, data=json.dumps(body), headers=headers, timeout=_TIMEOUT) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"no answer from {self._url}: {describe(error)}", remedy="Check that the engine and the router run."
            ) from error
        if response.status >= 400:
            message = f"{self._url} answered {response.status}: {server_message(raw)}"
            invalid = response.status < 500 and response.status not in _TRANSIENT
            raise EngineRequestError(message) if invalid else EngineError(message)
        try:
            reply = json.loads(raw)
        except ValueError as error:
            raise EngineError(f"{self._url} answered something else than JSON: {raw[:200]!r}") from error
        if not isinstance(reply, dict):
            raise EngineError(f"{self._url} must answer one JSON object; got {raw[:200]!r}")
        return reply
