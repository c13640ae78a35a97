"""The driver's end: one version into every engine that can take it, and none that serves another."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from miles_core.errors import WeightSyncError
from miles_core.types import Manifest
from miles_core.weights.exchange import Call, EngineExchange, NoEngineError
from miles_core.weights.sender import TrainerError, TrainerSender

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import aiohttp

    from miles_core.types import Placement
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import EngineSet, Staged, TrainerWeights, UpdateChoice, WeightUpdates
    from miles_core.weights.salt import PrefixSalt

PauseMode: TypeAlias = Literal["in_place", "retract", "abort"]

_logger = logging.getLogger("miles.weights")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What was committed, by which ``transport`` and ``path``, and who was left behind, with the reason.

    ``seconds`` are those of each part: ``plan``, ``prepare``, ``pause``, ``begin``, ``transfer``, ``verify``,
    ``commit``, ``resume``; engines stand still from ``pause`` to ``resume``.
    """

    manifest: Manifest
    seconds: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, WeightSyncError] = field(default_factory=dict)
    transport: str = ""
    path: str = ""


class Publisher:
    """Moves versions from one trainer into the engines of a fleet, one update at a time.

    ``timeout`` bounds each exchange with trainer or engine, ``patience`` how long one engine is waited for after
    another has answered, both in seconds. ``pause_mode`` says what happens to requests in flight, ``choice`` by which
    transport the engines take an update. ``salt`` is renewed before requests can meet new weights.
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
        choice: UpdateChoice,
        patience: float | None = None,
        salt: PrefixSalt | None = None,
    ) -> None:
        self._fleet = fleet
        self._trainer = trainer
        self._http = http
        self._bucket_bytes = bucket_bytes
        self._timeout = timeout
        self._patience = patience
        self._pause_mode = pause_mode
        self._choice = choice
        self._salt = salt
        self._way = ""
        self._one_at_a_time = anyio.Lock()

    async def publish(self, version: int, engines: Sequence[str] | None = None) -> PublishResult:
        """Commit the trainer's present weights as ``version`` on the whole fleet, or on ``engines`` that are behind.

        Engines that fail are left behind. Where none is left because they cannot be reached, the version is committed
        all the same: those that come back are behind. Where the trainer fails, the engines that are well refuse, or the
        call is cancelled, the update is aborted everywhere: engines that no byte reached resume with their old weights;
        torn ones, and ones that had already committed, stay paused.

        Raises:
            WeightSyncError: naming engine, stage and cause.
        """
        async with self._one_at_a_time:
            urls = self._fleet.urls if engines is None else engines
            while True:
                exchange = EngineExchange(urls, self._http, timeout=self._timeout, patience=self._patience)
                if not exchange.urls:
                    break
                try:
                    return await self._update(exchange, version)
                except _OtherWayError as failure:
                    _logger.warning("%s; the update to version %d begins again", failure, version)
                except NoEngineError as error:
                    if error.refused:
                        raise
                    break
        return PublishResult(Manifest(version, 0, 0), lost=exchange.lost)

    async def _update(self, engines: EngineExchange, version: int) -> PublishResult:
        sender = TrainerSender(self._trainer, self._timeout)
        clock = _Clock()
        try:
            with clock.part("plan"):
                source = await sender.layout()
                updates = await self._choice.choose(engines, source)
                plan = await updates.plan(engines, source, self._bucket_bytes)
            try:
                moved, path = await self._transact(engines, version, updates, plan, sender, clock)
            except (TrainerError, NoEngineError) as error:
                blamed = isinstance(error, TrainerError) or error.refused
                if blamed and self._choice.failed(updates.transport, error.message):
                    raise _OtherWayError(f"weights do not go by {updates.transport}: {error.message}") from error
                raise
        finally:
            with anyio.CancelScope(shield=True):
                await sender.close()
        if (way := f"{updates.transport} ({path})" if path else updates.transport) != self._way:
            self._way = way
            _logger.info("version %d went by %s", version, way)
        self._choice.measured(updates.transport, plan.nbytes, clock.total - clock.seconds["plan"])
        return PublishResult(_manifest(version, plan, moved), clock.seconds, engines.lost, updates.transport, path)

    async def _transact(
        self,
        engines: EngineExchange,
        version: int,
        updates: WeightUpdates,
        plan: Plan,
        sender: TrainerSender,
        clock: _Clock,
    ) -> tuple[Sequence[Staged], str]:
        try:
            with clock.part("prepare"):
                await updates.prepare(engines, version, plan, sender)
            with clock.part("pause"):
                await engines.all("/pause_generation", {"mode": self._pause_mode}, stage="pause")
            if self._salt is not None:
                self._salt.renew(version)
            with clock.part("begin"):
                await updates.begin(engines, version, plan, sender)
            with clock.part("transfer"):
                moved, path = await updates.move(engines, version, plan, sender), await sender.path()
            with clock.part("verify"):
                await updates.verify(engines, version, plan, moved)
            # A commit that some engines did not hear of would tear the fleet apart.
            with clock.part("commit"), anyio.CancelScope(shield=True):
                await updates.commit(engines, version, plan)
        except BaseException as error:
            await self._roll_back(engines, _aborted(engines, error), updates, version)
            raise
        with clock.part("resume"), anyio.CancelScope(shield=True):
            await engines.all("/continue_generation", {}, stage=f"resuming with version {version}")
        return moved, path

    async def _roll_back(
        self, engines: EngineExchange, urls: Sequence[str], updates: WeightUpdates, version: int
    ) -> None:
        # A stopped engine has cost time already; what it does not hear of now, the next update puts right.
        with anyio.move_on_after(min(self._timeout, self._patience or self._timeout), shield=True):
            async with anyio.create_task_group() as tasks:
                for url in urls:
                    tasks.start_soon(self._restore, engines, updates, url, version)

    async def _restore(self, engines: EngineExchange, updates: WeightUpdates, url: str, version: int) -> None:
        try:
            reason = await updates.abort(engines, url, version)
            if reason is not None:
                _logger.warning("engine %s stays paused: %s", url, reason)
            else:
                await engines.call(Call(url, "/continue_generation", {}), stage="resuming")
        except WeightSyncError as error:
            _logger.warning("engine %s stays as it is, its update could not be aborted: %s", url, error)


def _aborted(engines: EngineExchange, error: BaseException) -> Sequence[str]:
    """Who must hear of a failure: also engines that said no, unless the version is committed without them."""
    return () if isinstance(error, NoEngineError) and not error.refused else engines.well


class _OtherWayError(Exception):
    """A transport failed where another one may not."""


class _Clock:
    """Seconds of the parts of an update."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.seconds.values())

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = perf_counter()
        yield
        self.seconds[name] = perf_counter() - started


def box_key(placement: Placement) -> str:
    """The name of a box in the checksums of a :class:`~miles_core.types.Manifest`."""
    return f"{placement.label}:{placement.tensor.dtype}"


def _manifest(version: int, plan: Plan, moved: Sequence[Staged]) -> Manifest:
    checksums = {
        box_key(placement): checksum
        for staged in moved
        for placement, checksum in zip(staged.bucket.placements, staged.checksums, strict=True)
    }
    return Manifest(version, plan.tensors, plan.nbytes, checksums)
