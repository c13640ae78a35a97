"""Weight updates of a fleet: of all engines after a step, and of those that come back while the trainer rests."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from miles_core.app.retries import Retries
from miles_core.app.transports import update_choice
from miles_core.app.version_mark import VersionMark
from miles_core.app.weights_record import EngineRecord, WeightsRecord, write_record
from miles_core.errors import EngineError, WeightSyncError
from miles_core.lib.tasks import task_group
from miles_core.types import Manifest
from miles_core.weights.exchange import NoEngineError, RefusedError
from miles_core.weights.publish import Publisher, PublishResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from pathlib import Path

    from miles_core.app.engine_check import EngineCheck
    from miles_core.app.fleet import Fleet
    from miles_core.app.serving import Serving
    from miles_core.app.wiring import Wiring
    from miles_core.weights.ports import TrainerWeights

logger = logging.getLogger("miles.engines")

RETRY_SECONDS = 10.0
METRICS_SECONDS = 2.0


def fleet_updates(wiring: Wiring, served: Serving, trainer: TrainerWeights) -> FleetUpdates:
    """The updates of a run's engines, as its config says."""
    config = wiring.config
    publisher = Publisher(
        served.fleet,
        trainer,
        served.http,
        bucket_bytes=config.weights.bucket_bytes,
        timeout=config.weights.timeout,
        pause_mode=config.engine.pause_mode,
        choice=update_choice(wiring),
        patience=config.weights.patience,
        salt=served.salt,
    )
    patience = config.weights.patience
    return FleetUpdates(served.fleet, publisher, served.engine_check, wiring.run_dir, patience=patience)


class EnginePublisher(Protocol):
    """What moves weights into engines."""

    async def publish(self, version: int, engines: Sequence[str] | None = None) -> PublishResult:
        """Commit the trainer's weights as ``version`` on ``engines``; ``None``: on all that run."""


class FleetUpdates:
    """Implements the loop's publisher.

    What engines were told, and what they hold, is written into ``run_dir``.
    """

    def __init__(
        self,
        fleet: Fleet,
        publisher: EnginePublisher,
        engine_check: EngineCheck,
        run_dir: Path,
        *,
        patience: float = 30.0,
    ) -> None:
        self._fleet = fleet
        self._publisher = publisher
        self._engine_check = engine_check
        self._run_dir = run_dir
        self._mark = VersionMark(run_dir)
        self._record: WeightsRecord | None = None
        self._patience = patience
        self._retries = Retries()
        self._said: set[str] = set()
        self._waiting = anyio.CancelScope()

    async def publish(self, version: int) -> PublishResult:
        """Commit the trainer's weights as ``version`` on all engines that run; where one dies in it, on the others.

        Raises:
            WeightSyncError: naming engine, stage and cause, if all engines that there are refuse, or the trainer fails.
            CheckpointError: if the version cannot be noted in the run's folder.
        """
        while True:
            deaths = self._fleet.outages.deaths
            try:
                return await self._update(version, everyone=True)
            except (EngineError, WeightSyncError) as error:
                if self._fleet.outages.deaths == deaths:
                    raise
                logger.info("%s", error)
                logger.warning("an engine died in the update to version %d, which begins again", version)

    async def catch_up(self, version: int, *, without: Collection[str] = ()) -> None:
        """Bring the committed ``version`` to engines that are behind; the trainer must rest and hold it.

        Raises:
            MilesError: as :meth:`publish` does; that of an engine, too, that is well and refuses.
        """
        if set(self._fleet.behind).difference(without):
            result = await self._update(version, everyone=False, without=without)
            for error in result.lost.values():
                if isinstance(error, RefusedError):
                    raise error
        elif self._record is None:  # the engines have loaded it by themselves
            await self._note(WeightsRecord(version, ()))

    async def _update(self, version: int, *, everyone: bool, without: Collection[str] = ()) -> PublishResult:
        await to_thread.run_sync(self._mark.raise_to, version)
        async with self._fleet.update(version, everyone=everyone, without=without) as update:
            result = await self._published(version, update.urls)
            update.lost |= result.lost
        if update.urls or everyone:
            await self._note((self._record or WeightsRecord(version, ())).updated(result))
        return result

    async def _published(self, version: int, urls: Sequence[str]) -> PublishResult:
        """Committed to none where all refuse while another one is being started, which is brought up later."""
        try:
            return await self._publisher.publish(version, urls)
        except NoEngineError as error:
            if not self._fleet.starting:
                raise
            return PublishResult(Manifest(version, 0, 0), lost=error.lost)

    async def _note(self, record: WeightsRecord) -> None:
        """Write the record; where that fails a run goes on, for it only reads the mark."""
        behind = self._fleet.behind
        engines = (EngineRecord(name, url, url not in behind) for name, url in self._fleet.named_urls.items())
        self._record = replace(record, engines=tuple(engines))
        try:
            await to_thread.run_sync(write_record, self._run_dir, self._record)
        except OSError as error:
            logger.warning("what the engines hold cannot be written into %s: %s", self._run_dir, error)

    @asynccontextmanager
    async def kept_up(self, version: int) -> AsyncIterator[None]:
        """A time in which the trainer rests with the weights of ``version``: engines that are behind get them.

        An update that has begun when the block ends has ``patience`` more seconds, then it is given up: the next one is
        for all. One that fails is made again after ``RETRY_SECONDS``, then less and less often.

        Raises:
            MilesError: as :meth:`publish` does, if no engine serves and none is being started.
        """
        ended = anyio.Event()
        async with task_group() as tasks:
            tasks.start_soon(self._keep_up, version, ended)
            yield
            ended.set()
            self._waiting.cancel()
            tasks.cancel_scope.deadline = anyio.current_time() + self._patience

    async def _keep_up(self, version: int, ended: anyio.Event) -> None:
        while not ended.is_set():
            with anyio.CancelScope() as self._waiting:
                await self._due()
            if not ended.is_set():
                await self._try_to_catch_up(version)

    def _resting(self) -> list[str]:
        """Engines that failed to catch up so lately that they are not tried again yet."""
        return [url for url in self._fleet.behind if self._retries.wait(url, RETRY_SECONDS) > 0]

    async def _due(self) -> None:
        """Wait until an engine is behind that may be tried."""
        while True:
            waits = [self._retries.wait(url, RETRY_SECONDS) for url in self._fleet.behind]
            if waits and min(waits) <= 0:
                return
            with anyio.move_on_after(min(waits, default=float("inf"))):
                await self._fleet.changed()

    async def _try_to_catch_up(self, version: int) -> None:
        """Errors do not matter as long as an engine serves, or another one is being started."""
        resting = self._resting()
        tried = set(self._fleet.behind).difference(resting)
        try:
            await self.catch_up(version, without=resting)
        except (EngineError, WeightSyncError) as error:
            if not (self._fleet.serves or self._fleet.starting):
                raise
            logger.info("%s", error)
            why = error.message.splitlines()[0].removesuffix("; the end of its log:")
            self._say_once(f"version %d did not reach engines that are behind; others go on: {why}", version)
        behind = self._fleet.behind
        self._retries.keep(behind)
        for url in tried.intersection(behind):
            self._retries.failed(url)

    def _say_once(self, text: str, version: int) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning(text, version)

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
