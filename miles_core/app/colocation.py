"""Placement: whether engines keep their memory while the trainer trains."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import EngineError
from miles_core.weights.exchange import Call, EngineExchange, NoEngineError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import aiohttp

    from miles_core.app.fleet import Fleet

DRAIN_PAUSE = 0.05


class Disaggregated:
    """Engines and trainer have memory of their own."""

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Nothing to move."""
        yield


class Colocated:
    """Engines give back keys, values and weights before a training step, and take memory again after it.

    Their weights are garbage from then until the next update is committed, so publish before anything is generated:
    the update also ends the pause that begins here. An engine that does not give its memory back in time is killed,
    since the trainer needs it, and started again after the step; one that does not take it again is left behind.
    """

    def __init__(
        self, fleet: Fleet, http: aiohttp.ClientSession, *, timeout: float, patience: float | None = None
    ) -> None:
        self._fleet = fleet
        self._http = http
        self._timeout = timeout
        self._patience = patience

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Drain and release the engines, and resume them afterwards; none is started meanwhile.

        Raises:
            EngineError: if all engines are well and refuse.
        """
        async with self._fleet.no_starts():
            engines = self._engines(self._fleet.urls)
            async with self._moving(engines, end=True):
                await engines.all("/pause_generation", {"mode": "abort"}, stage="abort of what still runs")
                await self._drain(engines)
                await engines.all("/release_memory_occupation", {}, stage="release of memory")
            yield
            alive = self._engines([url for url in engines.urls if url in self._fleet.urls])
            async with self._moving(alive):
                await alive.all("/resume_memory_occupation", {}, stage="resume of memory")

    def _engines(self, urls: Sequence[str]) -> EngineExchange:
        return EngineExchange(urls, self._http, timeout=self._timeout, patience=self._patience)

    @asynccontextmanager
    async def _moving(self, engines: EngineExchange, *, end: bool = False) -> AsyncIterator[None]:
        """Leave those behind that are lost in the block; the run goes on without engines if they may come back."""
        try:
            yield
        except NoEngineError as error:
            if error.refused:
                raise EngineError(error.message, remedy=error.remedy) from error
        await self._fleet.leave_behind(engines.lost, end=end)

    async def _drain(self, engines: EngineExchange) -> None:
        """Wait until aborted requests have left: a busy SGLang would not refuse the release but die of it.

        A flush of the cache is refused as long as something runs, and does nothing worse.
        """
        deadline = time.monotonic() + self._timeout

        async def one(url: str) -> None:
            while True:
                try:
                    await engines.call(Call(url, "/flush_cache", {}), stage="drain")
                    return
                except RefusedError:
                    if time.monotonic() > deadline:
                        raise
                await anyio.sleep(DRAIN_PAUSE)

        await engines.each(one, stage="drain")
