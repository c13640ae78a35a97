"""One engine's control endpoints; never through the router."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

from miles_core.engine.http import describe, server_message
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping


class EngineControl:
    """Controls the engine at ``url``; every call raises :class:`EngineError` naming URL and cause.

    ``timeout`` bounds one call in seconds; pausing waits for the engine's running forward pass. ``health_timeout``
    bounds the health check.
    """

    def __init__(
        self, url: str, http: aiohttp.ClientSession, *, timeout: float = 60.0, health_timeout: float = 5.0
    ) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._timeout = timeout
        self._health_timeout = health_timeout

    async def health(self) -> None:
        """Return if the engine serves."""
        await self._call("GET", "/health", limit=self._health_timeout)

    async def model_info(self) -> dict[str, Any]:
        """What is served: ``model_path``, ``weight_version`` and more."""
        raw = await self._call("GET", "/model_info")
        try:
            info = json.loads(raw)
        except ValueError:
            info = None
        if not isinstance(info, dict):
            raise EngineError(f"{self.url}/model_info must answer a JSON object; got {raw[:200]!r}")
        return info

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop generating; returns when no forward pass runs."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on generating."""
        await self._call("POST", "/continue_generation", {})

    async def abort_all(self) -> None:
        """Abort every request in the engine."""
        await self._call("POST", "/abort_request", {"abort_all": True})

    async def flush_cache(self) -> None:
        """Drop all cached prefixes; the engine refuses while requests run."""
        await self._call("POST", "/flush_cache")

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, limit: float | None = None
    ) -> bytes:
        limit = limit or self._timeout
        url = f"{self.url}{path}"
        try:
            async with self._http.request(
                method, url, json=body, timeout=aiohttp.ClientTimeout(total=limit)
            ) as response:
                raw = await response.read()
        except TimeoutError as error:
            raise EngineError(f"no answer from {url} within {limit} s", remedy="Check the engine's load.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"no answer from {url}: {describe(error)}", remedy="Check that it runs.") from error
        if response.status >= 400:
            raise EngineError(f"{url} answered {response.status}: {server_message(raw)}")
        return raw
