"""Updates of SGLang by ``/update_weights_from_distributed``: the trainer broadcasts while the engines receive."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError
from miles_core.lib.tasks import single_error, task_group
from miles_core.types import Opening
from miles_core.weights.exchange import Call
from miles_core.weights.sglang_groups import EngineGroups
from miles_core.weights.sglang_loads import SglangLoads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Bucket
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import Sender, Staged
    from miles_core.weights.publish import PauseMode

_logger = logging.getLogger("miles.weights")


class SglangDistributedUpdates(SglangLoads):
    """Loads bucket by bucket into engines that are paused; names the version only when all hold all of it.

    Each engine has a process group of its own with the trainer, kept until the engine fails or is started again: in a
    common one, gloo leaves the others waiting for up to SGLang's half an hour when one is killed. Written from the
    source of SGLang 0.5.23.
    """

    def __init__(self, transport: str, pause_mode: PauseMode) -> None:
        super().__init__(transport, pause_mode)
        self._groups = EngineGroups()
        self._opened: tuple[str, ...] = ()

    async def prepare(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Decide where each engine will meet the trainer, unless they have met."""
        await self._groups.prepare(engines)

    async def begin(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Open the update; the trainer waits for engines that are new."""
        try:
            await self._open(engines, version, sender)
        except WeightSyncError:  # such as a port that someone else has taken meanwhile
            self._groups.forget(engines.urls)
            await self._groups.prepare(engines)
            await self._open(engines, version, sender)
        await self._sessions.begin(engines, version)

    async def move(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> Sequence[Staged]:
        """Broadcast each bucket to every engine."""
        moved = []
        try:
            for bucket in plan.buckets:
                if self._opened != engines.urls:
                    await self._open(engines, version, sender)
                moved.append(await self._broadcast(engines, bucket, sender))
        except BaseException:
            # Groups in which something was begun are of no use; SGLang waits in them until the trainer leaves.
            self._groups.forget(self._opened)
            await self._leave(version, sender)
            raise
        return moved

    async def commit(self, engines: EngineExchange, version: int, plan: Plan) -> None:
        """Name the weights; groups of engines that say so are kept."""
        await super().commit(engines, version, plan)
        self._groups.committed(engines, version)

    async def _open(self, engines: EngineExchange, version: int, sender: Sender) -> None:
        self._opened = engines.urls
        await sender.open(self.transport, Opening(version, group=self._groups.opening(self._opened)))

    async def _leave(self, version: int, sender: Sender) -> None:
        self._opened = ()
        try:
            await sender.open(self.transport, Opening(version, group=self._groups.opening(())))
        except WeightSyncError as error:  # what made the update fail says more
            _logger.warning("the trainer could not leave its process groups: %s", error)

    async def _broadcast(self, engines: EngineExchange, bucket: Bucket, sender: Sender) -> Staged:
        with single_error():
            async with task_group() as tasks:
                tasks.start_soon(self._receive, engines, bucket)
                staged = await sender.stage(bucket)
        await sender.release(staged)
        for number, reason in staged.delivery.get("failed", {}).items():
            url = self._opened[int(number)]
            self._groups.forget([url])
            engines.lose(url, WeightSyncError(f"engine {url}: bucket {bucket.index} did not reach it: {reason}"))
        return staged

    async def _receive(self, engines: EngineExchange, bucket: Bucket) -> None:
        """What the engines do while the trainer sends."""
        await self._groups.join(engines)
        self._sessions.loading(engines)
        body = _described(bucket)
        calls = [
            Call(url, "/update_weights_from_distributed", {**body, "group_name": self._groups.name(url)})
            for url in engines.urls
        ]
        await engines.gather(calls, stage=f"load of bucket {bucket.index}")
        self._groups.forget(engines.lost)


def _described(bucket: Bucket) -> dict[str, Any]:
    specs = [placement.tensor for placement in bucket.placements]
    return {
        "names": [spec.name for spec in specs],
        "dtypes": [spec.dtype for spec in specs],
        "shapes": [list(spec.shape) for spec in specs],
        "load_format": "flattened_bucket",  # all of it as one row of bytes, as the bucket is
        "flush_cache": False,
    }
