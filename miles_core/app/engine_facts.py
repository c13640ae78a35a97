"""What a running engine, or a router before one, says of itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio

from miles_core.engine.http import describe, server_message
from miles_core.engine.prompt import KEPT_BACK, usable_context
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATHS = ("/server_info", "/model_info")
_ASK = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)
_PAUSE = 0.5


async def wait_for_engine(url: str, seconds: float, waiting: Callable[[str], None]) -> dict[str, Any]:
    """What the engine at ``url`` says of itself, as soon as it answers; ``waiting`` hears once why it does not yet.

    A server that knows no such question, as some routers do not, is there and says nothing.

    Raises:
        EngineError: if it does not answer within ``seconds``.
    """
    problem: str | None = None
    async with aiohttp.ClientSession() as http:
        with anyio.move_on_after(seconds):
            while True:
                try:
                    return {key: value for path in _PATHS for key, value in (await _ask(http, url + path)).items()}
                except EngineError as error:
                    if problem is None:
                        waiting(error.message)
                    problem = error.message
                await anyio.sleep(_PAUSE)
    raise EngineError(
        f"no engine answered within {seconds:g} s: {problem or f'{url} is silent'}",
        remedy="Start the engine or router, check --url, or raise --wait.",
    )


def context_of(info: Mapping[str, Any], model_length: int) -> int:
    """Tokens of prompt and output that fit, those that engines keep back included.

    ``info`` may name the context length that the engine was started with, and what its memory allows.
    """
    usable = usable_tokens(info)
    return model_length if usable is None else min(model_length, usable + KEPT_BACK)


def usable_tokens(info: Mapping[str, Any]) -> int | None:
    """Tokens that a trajectory may have on the engine; SGLang reports them as its memory allows (max_req_input_len)."""
    length, usable = info.get("context_length"), info.get("max_req_input_len")
    known = [usable_context(length) if isinstance(length, int) else None, usable]
    return min((value for value in known if isinstance(value, int)), default=None)


async def _ask(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    try:
        async with http.get(url, timeout=_ASK) as reply:
            status, raw = reply.status, await reply.read()
    except aiohttp.InvalidURL as error:
        raise EngineError(f"{url} is no URL: {error}", remedy="Write http://HOST:PORT.") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise EngineError(f"no answer from {url}: {describe(error)}") from error
    if status >= 500:
        raise EngineError(f"{url} answered {status}: {server_message(raw)}")
    try:
        answer = json.loads(raw) if status == 200 else {}
    except ValueError:
        answer = {}
    return answer if isinstance(answer, dict) else {}
