"""The driver's end: one version into every engine, or into none that serves."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import anyio

from miles_core.errors import MilesError, WeightSyncError
from miles_core.types import Layout, Manifest
from miles_core.weights.exchange import EngineExchange
from miles_core.weights.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import aiohttp

    from miles_core.types import Bucket
    from miles_core.weights.plan import Plan

_logger = logging.getLogger("miles.weights")


class TrainerWeights(Protocol):
    """The trainer's side of an update, as the driver reaches it."""

    async def layout(self) -> Layout:
        """Where the trained model keeps its checkpoint tensors."""

    async def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], str]:
        """Offer a bucket; returns its delivery and its xxh3-128 in hex."""

    async def release(self, delivery: Mapping[str, Any]) -> None:
        """Free a delivery."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What was committed, and the seconds from planning to resuming."""

    manifest: Manifest
    seconds: float


class Publisher:
    """Moves versions from one trainer into a fixed set of engines, one update at a time.

    ``timeout`` bounds each exchange with trainer or engine, in seconds. ``pause_mode`` says what happens to requests
    in flight.
    """

    def __init__(
        self,
        engine_urls: Sequence[str],
        trainer: TrainerWeights,
        http: aiohttp.ClientSession,
        *,
        bucket_bytes: int,
        timeout: float,
        pause_mode: Literal["in_place", "retract", "abort"],
    ) -> None:
        self._engines = EngineExchange(engine_urls, http, timeout=timeout)
        self._trainer = trainer
        self._bucket_bytes = bucket_bytes
        self._timeout = timeout
        self._pause_mode = pause_mode
        self._plan: Plan | None = None
        self._one_at_a_time = anyio.Lock()

    async def publish(self, version: int) -> PublishResult:
        """Commit the trainer's present weights as ``version`` on all engines.

        On failure or cancellation the update is aborted everywhere. Engines that no byte reached resume with their
        old weights; torn ones, and ones that had already committed, stay paused.

        Raises:
            WeightSyncError: naming engine, stage and cause.
        """
        async with self._one_at_a_time:
            started = perf_counter()
            plan = self._plan = self._plan or await self._make_plan()
            try:
                checksums = await self._move(version, plan)
                # A commit that some engines did not hear of would tear the fleet apart.
                with anyio.CancelScope(shield=True):
                    await self._engines.all("/weights/commit", {"version": version}, stage="commit")
            except BaseException:
                await self._roll_back(version)
                raise
            with anyio.CancelScope(shield=True):
                await self._engines.all("/continue_generation", {}, stage=f"resuming with version {version}")
        manifest = Manifest(version, plan.tensors, plan.nbytes, tuple(checksums))
        return PublishResult(manifest, perf_counter() - started)

    async def _make_plan(self) -> Plan:
        replies = await self._engines.all("/weights/layout", None, stage="asking for the layout")
        receivers = [_layout(url, text) for url, text in zip(self._engines.urls, replies, strict=True)]
        try:
            source = await self._trainer.layout()
        except (MilesError, OSError) as error:
            raise _trainer_error("asking for the layout", error) from error
        return make_plan(source, receivers, self._bucket_bytes)

    async def _move(self, version: int, plan: Plan) -> list[str]:
        await self._engines.all("/pause_generation", {"mode": self._pause_mode}, stage="pause")
        await self._engines.all("/weights/begin", {"version": version}, stage=f"begin of version {version}")
        checksums = [await self._transfer(version, bucket) for bucket in plan.buckets]
        await self._engines.all("/weights/verify", {"version": version, "checksums": checksums}, stage="verify")
        return checksums

    async def _transfer(self, version: int, bucket: Bucket) -> str:
        delivery, checksum = await self._stage(bucket)
        body = {"version": version, "bucket": bucket.to_json(), "delivery": dict(delivery)}
        try:
            await self._engines.all("/weights/receive", body, stage=f"receive of bucket {bucket.index}")
        finally:
            await self._release(delivery)
        return checksum

    async def _stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], str]:
        try:
            # Shielded: a cancelled call would leave a delivery in the trainer that no one can name.
            with anyio.fail_after(self._timeout, shield=True):
                return await self._trainer.stage(bucket)
        except (MilesError, OSError) as error:
            raise _trainer_error(f"staging bucket {bucket.index}", error) from error

    async def _release(self, delivery: Mapping[str, Any]) -> None:
        try:
            with anyio.fail_after(self._timeout, shield=True):
                await self._trainer.release(delivery)
        except (MilesError, OSError) as error:
            # It costs memory in the trainer, not correctness; raising would hide why an update failed.
            _logger.warning("%s", _trainer_error("releasing a delivery", error))

    async def _roll_back(self, version: int) -> None:
        self._plan = None
        with anyio.move_on_after(self._timeout, shield=True):
            async with anyio.create_task_group() as tasks:
                for url in self._engines.urls:
                    tasks.start_soon(self._restore, url, version)

    async def _restore(self, url: str, version: int) -> None:
        try:
            status = json.loads(await self._engines.call(url, "/weights/abort", {}, stage="abort"))
            if status["torn"] or status["version"] >= version:
                _logger.warning("engine %s stays paused: %s", url, status)
            else:
                await self._engines.call(url, "/continue_generation", {}, stage="resuming")
        except (WeightSyncError, ValueError, TypeError, KeyError) as error:
            _logger.warning("engine %s stays as it is, its update could not be aborted: %s", url, error)


def _layout(url: str, text: str) -> Layout:
    try:
        return Layout.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise WeightSyncError(
            f"engine {url}: its layout must be {{placements, unclaimed}} in JSON: {type(error).__name__} {error}",
            remedy="Run the same version of miles in driver and engines.",
        ) from error


def _trainer_error(stage: str, error: Exception) -> WeightSyncError:
    cause = error.message if isinstance(error, MilesError) else f"{type(error).__name__} {error}".rstrip()
    remedy = error.remedy if isinstance(error, MilesError) else "See whether the trainer still runs, and its log."
    return WeightSyncError(f"trainer: {stage} failed: {cause}", remedy=remedy)
