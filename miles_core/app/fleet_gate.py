"""Which engines of a fleet get requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from miles_core.app.fleet_servers import Server


class Gate(Protocol):
    """What lets requests through to engines: the router."""

    async def add(self, url: str) -> None:
        """Send requests to an engine, too."""

    async def remove(self, url: str, *, drop: bool = False) -> None:
        """Send an engine no more requests; ``drop``: end those in flight, which are then made again elsewhere."""


class Admission:
    """Lets engines through a gate, and takes them out of it, one change at a time; it is closed until ``gate`` is set.

    Raises, in all its calls, the ``RouterError`` of a gate that fails.
    """

    def __init__(self) -> None:
        self.gate: Gate | None = None
        self._lock = anyio.Lock()

    async def admit(self, server: Server, version: int) -> bool:
        """Let a server through that runs and holds ``version``; whether it serves only since now."""
        async with self._lock:
            url = server.url
            if self.gate is None or url is None or server.serving_since is not None or server.version != version:
                return False
            await self.gate.add(url)
            if server.url == url:
                server.heard = server.serving_since = time.monotonic()
                return True
            await self.gate.remove(url)  # it died meanwhile
            return False

    async def withdraw(self, url: str, *, drop: bool = False) -> None:
        """Take an engine out that served."""
        async with self._lock:
            if self.gate is not None:
                await self.gate.remove(url, drop=drop)
