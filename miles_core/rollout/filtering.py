"""Filters: applied in config order, every drop counted by its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError
from miles_core.kinds.filters import Verdict
from miles_core.types import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.filters import Filter
    from miles_core.types import Group


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter and how errors call it."""

    name: str
    filter: Filter


class FilterChain:
    """Sample filters take trajectories out of groups, then group filters drop whole groups."""

    def __init__(self, filters: Sequence[NamedFilter]) -> None:
        self._sample = tuple(entry for entry in filters if entry.filter.stage == "sample")
        self._group = tuple(entry for entry in filters if entry.filter.stage == "group")

    def apply(self, groups: Sequence[Group]) -> tuple[list[Group], Counter[str]]:
        """The groups that are left, in order, and how many groups or trajectories each reason dropped.

        Trajectories that failed, were aborted or have no reward never reach a filter: they are dropped first, as
        ``failed``, ``aborted`` or ``unscored``.

        Raises:
            RolloutError: if a filter raises or returns no verdict; neither keep nor drop is assumed.
        """
        dropped: Counter[str] = Counter()
        kept = []
        for group in groups:
            group = self._trainable(group, dropped)
            if not group.trajectories:
                continue
            reason = self._judge(self._group, group, f"group {group.id}")
            if reason is None:
                kept.append(group)
            else:
                dropped[reason] += 1
        return kept, dropped

    def _trainable(self, group: Group, dropped: Counter[str]) -> Group:
        left = []
        for trajectory in group.trajectories:
            reason: str | None = None
            if not trajectory.status.trainable:
                reason = str(trajectory.status)
            elif trajectory.reward is None or trajectory.reward.value is None:
                reason = "unscored"
            else:
                reason = self._judge(self._sample, trajectory, f"trajectory {trajectory.id}")
            if reason is None:
                left.append(trajectory)
            else:
                dropped[reason] += 1
        return replace(group, trajectories=tuple(left))

    def _judge(self, filters: Sequence[NamedFilter], item: Any, what: str) -> str | None:
        for entry in filters:
            try:
                verdict = entry.filter.keep(item)
            except Exception as error:
                raise RolloutError(
                    f"filter {entry.name} raised {type(error).__name__} on {what}: {error}",
                    remedy="Mend the filter: a group is neither kept nor dropped by an error.",
                ) from error
            if not isinstance(verdict, Verdict):
                raise RolloutError(f"filter {entry.name} must return a Verdict for {what}; got {verdict!r}")
            if not verdict.keep:
                return verdict.reason or entry.name
        return None


def failures(groups: Sequence[Group]) -> list[str]:
    """What made trajectories fail, one text each."""
    return [t.error or t.stop_reason for g in groups for t in g.trajectories if t.status is Status.FAILED]
