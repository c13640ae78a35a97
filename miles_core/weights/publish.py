"""The driver's end: one version into every engine, or into none that serves."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from miles_core.errors import MilesError, WeightSyncError
from miles_core.types import Manifest
from miles_core.weights.exchange import EngineExchange
from miles_core.weights.plan import make_plan
from miles_core.weights.ports import Staged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import aiohttp

    from miles_core.types import Bucket
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import EngineSet, TrainerWeights, WeightUpdates
    from miles_core.weights.salt import PrefixSalt

PauseMode: TypeAlias = Literal["in_place", "retract", "abort"]

_logger = logging.getLogger("miles.weights")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What was committed, and the seconds from planning to resuming."""

    manifest: Manifest
    seconds: float


class Publisher:
    """Moves versions from one trainer into the engines of a fleet, one update at a time.

    ``timeout`` bounds each exchange with trainer or engine, in seconds. ``pause_mode`` says what happens to requests
    in flight, ``updates`` how the engines take an update. ``salt`` is renewed before requests can meet new weights.
    """

    def __init__(
        self,
        fleet: EngineSet,
        trainer: TrainerWeights,
        http: aiohttp.ClientSession,
        *,
        bucket_bytes: int,
        timeout: float,
        pause_mode: PauseMode,
        updates: WeightUpdates,
        salt: PrefixSalt | None = None,
    ) -> None:
        self._fleet = fleet
        self._trainer = trainer
        self._http = http
        self._bucket_bytes = bucket_bytes
        self._timeout = timeout
        self._pause_mode = pause_mode
        self._updates = updates
        self._salt = salt
        self._planned: tuple[frozenset[str], Plan] | None = None
        self._one_at_a_time = anyio.Lock()

    async def publish(self, version: int, engines: Sequence[str] | None = None) -> PublishResult:
        """Commit the trainer's present weights as ``version`` on the whole fleet, or on ``engines`` that are behind.

        Where no engine lives, the version is committed all the same: those that come back are behind. On failure or
        cancellation the update is aborted everywhere. Engines that no byte reached resume with their old weights; torn
        ones, and ones that had already committed, stay paused.

        Raises:
            WeightSyncError: naming engine, stage and cause.
        """
        async with self._one_at_a_time:
            started = perf_counter()
            urls = self._fleet.urls if engines is None else engines
            exchange = EngineExchange(urls, self._http, timeout=self._timeout)
            manifest = Manifest(version, 0, 0, ())
            if exchange.urls:
                manifest = await self._update(exchange, version)
        return PublishResult(manifest, perf_counter() - started)

    async def _update(self, engines: EngineExchange, version: int) -> Manifest:
        plan = await self._plan(engines)
        async with AsyncExitStack() as held:
            ahead: list[Staged] = []
            if self._updates.at_once:  # staged while the engines still generate
                ahead = [await held.enter_async_context(self._staged(bucket)) for bucket in plan.buckets]
            try:
                await engines.all("/pause_generation", {"mode": self._pause_mode}, stage="pause")
                if self._salt is not None:
                    self._salt.renew(version)
                await self._updates.begin(engines, version)
                staged = ahead or [await self._send(engines, version, bucket) for bucket in plan.buckets]
                await self._updates.verify(engines, version, staged)
                # A commit that some engines did not hear of would tear the fleet apart.
                with anyio.CancelScope(shield=True):
                    await self._updates.commit(engines, version)
            except BaseException:
                await self._roll_back(engines, version)
                raise
            with anyio.CancelScope(shield=True):
                await engines.all("/continue_generation", {}, stage=f"resuming with version {version}")
        return Manifest(version, plan.tensors, plan.nbytes, tuple(one.checksum for one in staged))

    async def _plan(self, engines: EngineExchange) -> Plan:
        """The plan for these engines; made once for as long as no other engine joins."""
        if self._planned is not None and self._planned[0].issuperset(engines.urls):
            return self._planned[1]
        receivers = await self._updates.layouts(engines)
        try:
            source = await self._trainer.layout()
        except (MilesError, OSError) as error:
            raise _trainer_error("asking for the layout", error) from error
        plan = make_plan(source, receivers or [source], self._bucket_bytes)
        self._planned = frozenset(engines.urls), plan
        return plan

    async def _send(self, engines: EngineExchange, version: int, bucket: Bucket) -> Staged:
        async with self._staged(bucket) as staged:
            await self._updates.receive(engines, version, staged)
        return staged

    @asynccontextmanager
    async def _staged(self, bucket: Bucket) -> AsyncIterator[Staged]:
        """The bucket as the trainer offers it, for as long as the context is open."""
        try:
            # Shielded: a cancelled call would leave a delivery in the trainer that no one can name.
            with anyio.fail_after(self._timeout, shield=True):
                staged = Staged(bucket, *await self._trainer.stage(bucket))
        except (MilesError, OSError) as error:
            raise _trainer_error(f"staging bucket {bucket.index}", error) from error
        try:
            yield staged
        finally:
            await self._release(staged.delivery)

    async def _release(self, delivery: Mapping[str, Any]) -> None:
        try:
            with anyio.fail_after(self._timeout, shield=True):
                await self._trainer.release(delivery)
        except (MilesError, OSError) as error:
            # It costs memory in the trainer, not correctness; raising would hide why an update failed.
            _logger.warning("%s", _trainer_error("releasing a delivery", error))

    async def _roll_back(self, engines: EngineExchange, version: int) -> None:
        self._planned = None
        with anyio.move_on_after(self._timeout, shield=True):
            async with anyio.create_task_group() as tasks:
                for url in engines.urls:
                    tasks.start_soon(self._restore, engines, url, version)

    async def _restore(self, engines: EngineExchange, url: str, version: int) -> None:
        try:
            reason = await self._updates.abort(engines, url, version)
            if reason is not None:
                _logger.warning("engine %s stays paused: %s", url, reason)
            else:
                await engines.call(url, "/continue_generation", {}, stage="resuming")
        except WeightSyncError as error:
            _logger.warning("engine %s stays as it is, its update could not be aborted: %s", url, error)


def _trainer_error(stage: str, error: Exception) -> WeightSyncError:
    cause = error.message if isinstance(error, MilesError) else f"{type(error).__name__} {error}".rstrip()
    remedy = error.remedy if isinstance(error, MilesError) else "See whether the trainer still runs, and its log."
    return WeightSyncError(f"trainer: {stage} failed: {cause}", remedy=remedy)
