"""Deaths and silences of engines, so that what failed by them can be told from what failed by itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio

from miles_core.errors import EngineError, MilesError, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import TypeAlias

    Lost: TypeAlias = Callable[[str, str], Awaitable[None]]

# The process of a dead engine is reaped within moments, but whoever watches a server that it did not start gives that
# server some seconds.
NOTICE_SECONDS = 20.0
PROBE_SECONDS = 0.2


class Inspector(Protocol):
    """What knows an engine by its URL."""

    async def check(self, url: str) -> None:
        """Raise an :class:`EngineError` if a run cannot use this engine."""

    async def answers(self, url: str) -> bool:
        """Whether there is any answer."""


class Outages:
    """Counts how often engines died or were found silent; ``urls`` gives those that should answer.

    ``on_lost`` is called once for each that died, was left behind or stayed silent, with its URL and why.
    """

    def __init__(self, inspector: Inspector, urls: Callable[[], Sequence[str]], on_lost: Lost | None = None) -> None:
        self._inspector = inspector
        self._urls = urls
        self._deaths: list[MilesError] = []
        self._on_lost = on_lost
        self._told: set[str] = set()
        self._silences = 0
        self._probing = anyio.Lock()
        self._noted = anyio.Event()

    async def left_behind(self, url: str, why: str) -> None:
        """Note that an engine serves no more, though it lives: requests in it fail, and not by themselves."""
        self._silences += 1
        if url not in self._told and self._on_lost is not None:
            self._told.add(url)
            await self._on_lost(url, why)

    def returned(self, url: str) -> None:
        """Note that an engine serves again."""
        self._told.discard(url)

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._deaths) + self._silences

    @property
    def deaths(self) -> int:
        """How many of them were deaths."""
        return len(self._deaths)

    def died(self, death: MilesError) -> None:
        """Note a death."""
        self._deaths.append(death)
        self._noted.set()
        self._noted = anyio.Event()

    async def lost(self, url: str, why: str) -> None:
        """Tell of an engine that is gone, unless it was told of when it fell silent."""
        if url not in self._told and self._on_lost is not None:
            await self._on_lost(url, why)
        self._told.discard(url)

    async def met_since(self, before: int) -> bool:
        """Whether there was one since there were ``before``.

        Asked after a failed request, which comes before the news of a death: what does not answer is given some time to
        be found dead, or to answer again.
        """
        async with self._probing:  # one asks, and those that wait learn from it
            if self.count == before and not await self._all_answer():
                self._silences += 1
                deaths = self.deaths
                with anyio.move_on_after(NOTICE_SECONDS) as notice:
                    while self.deaths == deaths and not await self._all_answer():
                        with anyio.move_on_after(PROBE_SECONDS):
                            await self._noted.wait()
                if notice.cancelled_caught:
                    await self._tell_of_silent()
        return self.count > before

    @asynccontextmanager
    async def blamed(self) -> AsyncIterator[None]:
        """Say which engine's death was the cause where one died in the block.

        Raises:
            EngineError: the death, with what followed from it.
        """
        deaths, before = self.deaths, self.count
        try:
            yield
        except (EngineError, WeightSyncError) as error:
            await self.met_since(before)
            if self.deaths == deaths:
                raise
            death = self._deaths[deaths]
            raise EngineError(f"{death.message}\n  then: {error.message}", remedy=death.remedy) from error

    async def _tell_of_silent(self) -> None:
        for url in self._urls():
            if await self._inspector.answers(url):
                self._told.discard(url)
            elif url not in self._told and self._on_lost is not None:
                self._told.add(url)
                await self._on_lost(url, f"it has given no answer for {NOTICE_SECONDS:g} s")

    async def _all_answer(self) -> bool:
        return all([await self._inspector.answers(url) for url in self._urls()])
