"""How busy an engine is, by its own word."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from miles_core.engine.http import describe, server_message
from miles_core.errors import EngineError

_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


async def running_requests(url: str, http: aiohttp.ClientSession) -> int:
    """The requests that the engine at ``url`` decodes now.

    An embedded engine says so in ``/server_info``, SGLang in ``/v1/loads``.

    Raises:
        EngineError: if it does not say.
    """
    info = await _ask(f"{url}/server_info", http)
    if "num_running" in info:
        return int(info["num_running"])
    loads = (await _ask(f"{url}/v1/loads", http)).get("loads")
    if not isinstance(loads, list):
        raise EngineError(f"{url}/v1/loads must answer a list of loads; got {loads!r}")
    return sum(int(load["num_running_reqs"]) for load in loads)


async def _ask(url: str, http: aiohttp.ClientSession) -> dict[str, Any]:
    try:
        async with http.get(url, timeout=_TIMEOUT) as response:
            raw, status = await response.read(), response.status
        answer = json.loads(raw) if status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise EngineError(f"no answer from {url}: {describe(error)}", remedy="Read the engine's log.") from error
    if not isinstance(answer, dict):
        raise EngineError(f"{url} must answer a JSON object; got status {status}: {server_message(raw)}")
    return answer
