"""Weight updates of a fleet: of all engines after a step, and of those that come back while the trainer rests."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from miles_core.app.errors import task_group
from miles_core.errors import EngineError, WeightSyncError
from miles_core.weights.publish import Publisher
from miles_core.weights.updates import weight_updates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from miles_core.app.engine_check import EngineCheck
    from miles_core.app.fleet import Fleet
    from miles_core.app.serving import Serving
    from miles_core.app.wiring import Wiring
    from miles_core.weights.ports import TrainerWeights
    from miles_core.weights.publish import PublishResult

logger = logging.getLogger("miles.engines")

RETRY_SECONDS = 10.0
METRICS_SECONDS = 2.0


def fleet_updates(wiring: Wiring, served: Serving, trainer: TrainerWeights) -> FleetUpdates:
    """The updates of a run's engines, as its config says."""
    config, hub = wiring.config, wiring.hub
    engine: Any = hub.load(hub.resolve("engines", config.engine.use))
    publisher = Publisher(
        served.fleet,
        trainer,
        served.http,
        bucket_bytes=config.weights.bucket_bytes,
        timeout=config.weights.timeout,
        pause_mode=config.engine.pause_mode,
        updates=weight_updates(engine.weight_updates, config.engine.pause_mode),
        salt=served.salt,
    )
    return FleetUpdates(served.fleet, publisher, served.engine_check)


class EnginePublisher(Protocol):
    """What moves weights into engines."""

    async def publish(self, version: int, engines: Sequence[str] | None = None) -> PublishResult:
        """Commit the trainer's weights as ``version`` on ``engines``; ``None``: on all that run."""


class FleetUpdates:
    """Implements the loop's publisher."""

    def __init__(self, fleet: Fleet, publisher: EnginePublisher, engine_check: EngineCheck) -> None:
        self._fleet = fleet
        self._publisher = publisher
        self._engine_check = engine_check
        self._waiting = anyio.CancelScope()

    async def publish(self, version: int) -> PublishResult:
        """Commit the trainer's weights as ``version`` on all engines that run.

        Raises:
            WeightSyncError: naming engine, stage and cause.
            EngineError: if an engine died in the midst of it.
        """
        async with self._fleet.update(version):
            return await self._publisher.publish(version)

    async def catch_up(self, version: int) -> None:
        """Bring the committed ``version`` to engines that are behind; the trainer must rest and hold it.

        Raises:
            MilesError: as :meth:`publish` does.
        """
        if self._fleet.behind:
            async with self._fleet.update(version, everyone=False) as engines:
                await self._publisher.publish(version, engines)

    @asynccontextmanager
    async def kept_up(self, version: int) -> AsyncIterator[None]:
        """A time in which the trainer rests with the weights of ``version``: engines that are behind get them.

        An update that has begun when the block ends is brought to its end. One that fails is made again when an engine
        starts, serves or dies, and every ``RETRY_SECONDS``, as long as other engines serve.

        Raises:
            MilesError: as :meth:`publish` does, if no engine serves.
        """
        ended = anyio.Event()
        async with task_group() as tasks:
            tasks.start_soon(self._keep_up, version, ended)
            yield
            ended.set()
            self._waiting.cancel()

    async def _keep_up(self, version: int, ended: anyio.Event) -> None:
        failed = False
        while not ended.is_set():
            with anyio.CancelScope() as self._waiting:
                if failed:
                    with anyio.move_on_after(RETRY_SECONDS):
                        await self._fleet.changed()
                await self._fleet.fell_behind()
            if not ended.is_set():
                failed = not await self._caught_up(version)

    async def _caught_up(self, version: int) -> bool:
        """Whether engines that are behind could be updated; where it does not matter, for others serve."""
        try:
            await self.catch_up(version)
        except (EngineError, WeightSyncError) as error:
            if not self._fleet.serves:
                raise
            logger.info("%s", error)
            why = error.message.splitlines()[0].removesuffix("; the end of its log:")
            logger.warning("version %d did not reach engines that are behind; others serve: %s", version, why)
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Restarts so far, and the acceptance length of speculative decoding, mean over the engines that have one."""
        metrics = {"engine/restarts": float(self._fleet.restarts)}
        if lengths := await self._accept_lengths():
            metrics["engine/accept_length"] = fmean(lengths)
        return metrics

    async def _accept_lengths(self) -> list[float]:
        """Asked of all engines at once; those that are slow to answer are left out, since training waits for this."""
        lengths: list[float] = []

        async def ask(url: str) -> None:
            with anyio.move_on_after(METRICS_SECONDS):
                if (length := await self._engine_check.accept_length([url])) is not None:
                    lengths.append(length)

        async with task_group() as tasks:
            for url in self._fleet.urls:
                tasks.start_soon(ask, url)
        return lengths
