"""What the engines of a fleet are at now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.app.fleet_servers import Server


class FleetState:
    """Servers and the committed ``version``, to ask and to wait for."""

    def __init__(self, servers: Sequence[Server], version: int) -> None:
        self._servers = servers
        self._version = version
        self._changed = anyio.Event()

    @property
    def urls(self) -> tuple[str, ...]:
        """The engines that run now, those that are behind included."""
        return tuple(server.url for server in self._servers if server.url is not None)

    @property
    def named_urls(self) -> dict[str, str]:
        """The same by name, such as ``engine-0``."""
        return {server.name: server.url for server in self._servers if server.url is not None}

    @property
    def serving_urls(self) -> dict[str, str]:
        """Those that take requests, by name."""
        serving = [server for server in self._servers if server.serving_since is not None]
        return {server.name: server.url for server in serving if server.url is not None}

    @property
    def behind(self) -> tuple[str, ...]:
        """Engines that run and hold other weights than the committed ones."""
        return tuple(server.url for server in self._servers if server.url is not None and self._is_behind(server))

    @property
    def version(self) -> int:
        """The committed policy version."""
        return self._version

    @property
    def serves(self) -> bool:
        """Whether an engine takes requests."""
        return any(server.serving_since is not None for server in self._servers)

    @property
    def starting(self) -> bool:
        """Whether an engine is being started, or will be again."""
        return any(server.url is None and not server.gone for server in self._servers)

    @property
    def restarts(self) -> int:
        """How often engines were started again."""
        return sum(server.restarts for server in self._servers)

    async def changed(self) -> None:
        """Wait until an engine starts, serves or dies."""
        await self._changed.wait()

    async def available(self) -> None:
        """Wait until an engine takes requests."""
        while not self.serves:
            await self._changed.wait()

    def _is_behind(self, server: Server) -> bool:
        return server.version != self._version

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
