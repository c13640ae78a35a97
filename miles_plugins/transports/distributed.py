"""The ``distributed`` transport: broadcasts to stock SGLang, in a process group with each engine's ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError
from miles_plugins.transports.broadcast_group import BroadcastGroup, GroupPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import Bucket, Opening, PluginContext


class Distributed:
    """A delivery is ``{"failed": {number: reason}}``: the bytes have gone to all engines by then, or not to those.

    ``opening.group`` is ``{"groups": [...], "active": [names]}``. ``groups`` are all that should exist, each with the
    fields of :class:`~miles_plugins.transports.broadcast_group.GroupPlan`; one that exists already is kept. ``active``
    names those that get this update; the numbers of a delivery count them. Engines join between :meth:`open` and the
    first :meth:`send`, which waits for them, and must be told to receive while the trainer sends. A group in which
    anything failed is left; another one of that engine needs another name.
    """

    sglang_update = "distributed"
    receivers = False

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""
        self._groups: dict[str, BroadcastGroup] = {}
        self._active: tuple[str, ...] = ()

    def open(self, opening: Opening) -> None:
        """Wait for the ranks of new engines at an address, and leave groups that should not exist.

        Raises:
            WeightSyncError: if the port is taken, or there is no GPU for a group that needs one.
        """
        plans = {plan["name"]: GroupPlan(**plan) for plan in opening.group["groups"]}
        self._active = tuple(opening.group["active"])
        for name in self._groups.keys() - plans.keys():
            self._groups.pop(name).close()
        for name, plan in plans.items():
            if name in self._active and name not in self._groups:
                self._groups[name] = BroadcastGroup(plan)

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Broadcast the payload in all groups at once; returns when each has it, or failed.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or holds a part of a tensor.
        """
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        if part := next((one for one in bucket.placements if one.region != one.tensor.whole), None):
            raise WeightSyncError(f"SGLang's loader takes whole tensors; bucket {bucket.index} holds {part.label}")
        if not self._active:
            raise WeightSyncError("the distributed transport must be opened for at least one engine before it sends")
        with ThreadPoolExecutor(len(self._active)) as threads:
            reasons = list(threads.map(lambda name: self._broadcast(name, payload), self._active))
        return {"failed": {str(number): reason for number, reason in enumerate(reasons) if reason is not None}}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Nothing to free."""

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: object) -> bytes:
        """Refuse: only stock SGLang takes these.

        Raises:
            WeightSyncError: always.
        """
        raise WeightSyncError(
            "our servers join no process group", remedy='Set [weights] use = "memory" for engines with our receiver.'
        )

    def path(self) -> str:
        """Which way the bytes take."""
        return " and ".join(sorted({f"broadcast by {group.plan.backend}" for group in self._groups.values()}))

    def close(self) -> None:
        """Leave all groups."""
        self._active = ()
        while self._groups:
            self._groups.popitem()[1].close()

    def _broadcast(self, name: str, payload: memoryview) -> str | None:
        """Why it failed, if it did; the group is left then."""
        group = self._groups.get(name)
        if group is None:
            return "its process group was left after a failure"
        try:
            group.join()
            group.broadcast(payload.cast("B"))
        except RuntimeError as error:
            self._groups.pop(name).close()
            return f"{group.plan}: {error}"
        return None
