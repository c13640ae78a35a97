"""Finds engines that hang: they live, hold requests, and give no answer to anything."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import EngineError
from miles_core.lib.tasks import task_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from miles_core.app.fleet_servers import Server
    from miles_core.app.outages import Inspector

PULSE_SECONDS = 10.0


class Pulse:
    """Asks every engine that serves, again and again; ``is_silent`` is told of one that was silent for ``patience``."""

    def __init__(
        self,
        servers: Sequence[Server],
        inspector: Inspector,
        patience: float,
        is_silent: Callable[[Server, str], Awaitable[None]],
    ) -> None:
        self._servers = servers
        self._inspector = inspector
        self._patience = patience
        self._is_silent = is_silent

    async def watch(self) -> None:
        """Ask for ever."""
        while True:
            await anyio.sleep(min(PULSE_SECONDS, self._patience))
            async with task_group() as tasks:
                for server in self._servers:
                    if server.url is not None and server.serving_since is not None:
                        tasks.start_soon(self._feel, server, server.url)

    async def _feel(self, server: Server, url: str) -> None:
        if await self._inspector.answers(url):
            server.heard = time.monotonic()
        elif time.monotonic() - server.heard >= self._patience:
            await self._is_silent(server, url)


def no_answer(url: str) -> EngineError:
    """The reason to leave an engine behind that hangs."""
    return EngineError(
        f"engine {url} gives no answer",
        remedy="See whether its process is stopped, or its host overloaded; more [weights] patience waits longer.",
    )
