"""The router's verbs that add and remove engines."""

from __future__ import annotations

import aiohttp

from miles_core.engine.http import describe, server_message
from miles_core.errors import RouterError

ASK_SECONDS = 30.0


class RouterWorkers:
    """Implements a fleet's gate on a router."""

    def __init__(self, router_url: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{router_url}/workers"
        self._http = http

    async def add(self, url: str) -> None:
        """Send requests to an engine, too.

        Raises:
            RouterError: if the router cannot be reached or refuses.
        """
        await self._call("POST", url)

    async def remove(self, url: str, *, drop: bool = False) -> None:
        """Send an engine no more requests; ``drop``: those in flight end with an error that says to try again.

        Raises:
            RouterError: if the router cannot be reached or does not know it.
        """
        await self._call("DELETE", url, drop=drop)

    async def _call(self, method: str, url: str, **more: bool) -> None:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        try:
            async with self._http.request(method, self._url, json={"url": url, **more}, timeout=timeout) as reply:
                ok, raw = reply.ok, await reply.read()
        except (aiohttp.ClientError, OSError) as error:
            raise RouterError(
                f"the router does not answer {method} {self._url}: {describe(error)}", remedy="Read the router's log."
            ) from error
        if not ok:
            raise RouterError(
                f"the router refused {method} {self._url} for engine {url}: {server_message(raw)}",
                remedy="Let every router middleware pass /workers on.",
            )
