"""The buffer between generation and training, with its bound on staleness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import RolloutError
from miles_core.kinds.filters import BufferedGroup
from miles_core.rollout.step import StepRollout
from miles_core.types.versions import NONE_SKIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.rollout.filtering import FilterChain
    from miles_core.types import Group
    from miles_core.types.versions import SkippedVersions


class StepBuffer:
    """Hands generated steps to the trainer, at most ``ahead`` steps ahead of it: a full buffer blocks generation.

    With ``ahead = 0`` a step is generated only after the one before it was trained and its weights were committed:
    synchronous training by the same code. The default is ``max_staleness``, the most that fresh groups allow.
    ``trained`` steps are done already, as in a resumed run, and ``skipped`` versions count as no update.
    """

    def __init__(
        self,
        max_staleness: int,
        filters: FilterChain,
        *,
        ahead: int | None = None,
        trained: int = 0,
        skipped: SkippedVersions = NONE_SKIPPED,
    ) -> None:
        self._max_staleness = max_staleness
        self._ahead = max_staleness if ahead is None else ahead
        self._filters = filters
        self._trained = trained
        self._skipped = skipped
        self._ready: dict[int, StepRollout] = {}
        self._ended = False
        self._changed = anyio.Condition()

    @property
    def next_step(self) -> int:
        """The number of the next step to generate."""
        return max(self._ready, default=self._trained - 1) + 1

    async def reserve(self, step: int) -> None:
        """Wait until step number ``step`` may be generated."""
        async with self._changed:
            while step > self._trained + self._ahead:
                await self._changed.wait()

    async def put(self, rollout: StepRollout) -> None:
        """Store a generated step, before anything is awaited: there is no moment at which it is nowhere."""
        self._ready[rollout.step] = rollout
        async with self._changed:
            self._changed.notify_all()

    async def end(self) -> None:
        """Say that no further step comes."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def get(self, step: int, version: int) -> StepRollout | None:
        """Wait for a step and take it; ``None`` if it does not come any more.

        Groups older than the bound are dropped and counted as ``stale``, then filters of stage ``"buffer"`` judge.

        Raises:
            RolloutError: if a token is newer than ``version``, the committed one: versions never go backwards; or if
                a filter fails.
        """
        async with self._changed:
            while step not in self._ready:
                if self._ended:
                    return None
                await self._changed.wait()
            rollout = self._ready[step]
        buffered = [BufferedGroup(group, staleness(group, version, self._skipped)) for group in rollout.kept]
        fresh = [item for item in buffered if item.staleness <= self._max_staleness]
        dropped = rollout.dropped.copy()
        if stale := len(buffered) - len(fresh):
            dropped["stale"] += stale
        kept = await self._filters.apply_in_buffer(fresh, dropped)
        del self._ready[step]  # only now: a filter that fails must not cost a checkpoint the step
        return replace(rollout, kept=tuple(kept), dropped=dropped)

    async def trained(self, step: int) -> None:
        """Say that a step was trained and its weights are committed."""
        async with self._changed:
            self._trained = step + 1
            self._changed.notify_all()

    def state(self) -> list[dict[str, Any]]:
        """The steps that wait for training, as plain records for a checkpoint."""
        return [self._ready[step].to_record() for step in sorted(self._ready)]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Put back the steps of a checkpoint."""
        self._ready = {record["step"]: StepRollout.from_record(record) for record in state}


def staleness(group: Group, version: int, skipped: SkippedVersions = NONE_SKIPPED) -> int:
    """Weight updates that a group's oldest trained token lags behind ``version``, the committed one.

    Raises:
        RolloutError: if any trained token is newer than ``version``.
    """
    oldest, newest = group.oldest_version, group.newest_version
    if oldest is None or newest is None:
        return 0
    if newest > version:
        raise RolloutError(
            f"group {group.id} holds tokens of policy version {newest}, but the committed version is {version}",
            remedy="Versions only grow: resume with the version that the engines serve.",
        )
    return skipped.updates(oldest, version)
