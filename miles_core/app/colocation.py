"""Placement: whether engines keep their memory while the trainer trains."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import EngineError, WeightSyncError
from miles_core.weights.exchange import EngineExchange, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import aiohttp

DRAIN_PAUSE = 0.05


class Disaggregated:
    """Engines and trainer have memory of their own."""

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Nothing to move."""
        yield


class Colocated:
    """Engines give back keys, values and weights before a training step, and take memory again after it.

    Their weights are garbage from then until the next update is committed, so publish before anything is generated.
    """

    def __init__(self, engine_urls: Sequence[str], http: aiohttp.ClientSession, *, timeout: float) -> None:
        self._engines = EngineExchange(engine_urls, http, timeout=timeout)
        self._timeout = timeout

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Drain and release the engines, and resume them afterwards.

        Raises:
            EngineError: if requests do not end in time, or an engine refuses.
        """
        try:
            await self._engines.all("/abort_request", {"abort_all": True}, stage="abort of what still runs")
            await self._release()
            yield
            await self._engines.all("/resume_memory_occupation", {}, stage="resume of memory")
        except WeightSyncError as error:
            raise EngineError(error.message, remedy=error.remedy) from error

    async def _release(self) -> None:
        """Aborted requests leave between two forward passes; until then an engine refuses."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                await self._engines.all("/release_memory_occupation", {}, stage="release of memory")
                return
            except RefusedError:
                if time.monotonic() > deadline:
                    raise
            await anyio.sleep(DRAIN_PAUSE)
