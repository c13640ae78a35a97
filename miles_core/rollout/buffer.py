"""The buffer between generation and training, with its bound on staleness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import RolloutError

if TYPE_CHECKING:
    from miles_core.rollout.scheduler import StepRollout
    from miles_core.types import Group


class StepBuffer:
    """Hands generated steps to the trainer, at most ``max_staleness`` steps ahead of it.

    With ``max_staleness = 0`` a step is generated only after the one before it was trained and its weights were
    committed: synchronous on-policy training by the same code.
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._trained = 0
        self._ready: dict[int, StepRollout] = {}
        self._changed = anyio.Condition()

    async def reserve(self, step: int) -> None:
        """Wait until step number ``step`` may be generated."""
        async with self._changed:
            while step > self._trained + self._max_staleness:
                await self._changed.wait()

    async def put(self, rollout: StepRollout) -> None:
        """Store a generated step."""
        async with self._changed:
            self._ready[rollout.step] = rollout
            self._changed.notify_all()

    async def get(self, step: int, version: int) -> StepRollout:
        """Wait for a step and take it; groups older than the bound are dropped and counted as ``stale``.

        Raises:
            RolloutError: if a token is newer than ``version``, the committed one: versions never go backwards.
        """
        async with self._changed:
            while step not in self._ready:
                await self._changed.wait()
            rollout = self._ready.pop(step)
        fresh = tuple(group for group in rollout.kept if staleness(group, version) <= self._max_staleness)
        if len(fresh) == len(rollout.kept):
            return rollout
        dropped = rollout.dropped.copy()
        dropped["stale"] += len(rollout.kept) - len(fresh)
        return replace(rollout, kept=fresh, dropped=dropped)

    async def trained(self, step: int) -> None:
        """Say that a step was trained and its weights are committed."""
        async with self._changed:
            self._trained = step + 1
            self._changed.notify_all()


def staleness(group: Group, version: int) -> int:
    """Policy versions that a group's oldest trained token lags behind ``version``, the committed one.

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
    return version - oldest
