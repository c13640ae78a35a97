"""Filters: applied in config order, every drop counted by its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError
from miles_core.kinds.filters import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.filters import BufferedGroup, Filter
    from miles_core.types import Group


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter and how errors call it."""

    name: str
    filter: Filter


@dataclass(slots=True)
class Drops:
    """Drops counted by reason; ``causes`` tells the first cause of those that are no verdict on the policy."""

    counts: Counter[str] = field(default_factory=Counter)
    causes: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, cause: str | None = None) -> None:
        """Count one."""
        self.counts[reason] += 1
        if cause is not None:
            self.causes.setdefault(reason, cause)


class FilterChain:
    """Sample filters take trajectories out of groups, then group filters drop whole groups; each in config order."""

    def __init__(self, filters: Sequence[NamedFilter]) -> None:
        self._sample = tuple(entry for entry in filters if entry.filter.stage == "sample")
        self._group = tuple(entry for entry in filters if entry.filter.stage == "group")
        self._buffer = tuple(entry for entry in filters if entry.filter.stage == "buffer")

    def apply(self, groups: Sequence[Group], dropped: Drops) -> list[Group]:
        """The groups that are left, in order; the groups or trajectories that each reason dropped go to ``dropped``.

        Trajectories that failed, were aborted or have no reward never reach a filter: they are dropped first, as
        ``failed``, ``aborted`` or ``unscored``.

        Raises:
            RolloutError: if a filter raises or returns no verdict; neither keep nor drop is assumed.
        """
        kept = []
        for group in groups:
            group = self._trainable(group, dropped)
            if not group.trajectories:
                continue
            reason = self._judge(self._group, group, f"group {group.id}")
            if reason is None:
                kept.append(group)
            else:
                dropped.add(reason)
        return kept

    def apply_in_buffer(self, groups: Sequence[BufferedGroup], dropped: Counter[str]) -> list[Group]:
        """The groups that are left when the trainer takes them, by the filters of stage ``"buffer"``.

        Raises:
            RolloutError: if a filter raises or returns no verdict.
        """
        kept = []
        for item in groups:
            reason = self._judge(self._buffer, item, f"group {item.group.id}")
            if reason is None:
                kept.append(item.group)
            else:
                dropped[reason] += 1
        return kept

    def _trainable(self, group: Group, dropped: Drops) -> Group:
        left = []
        for trajectory in group.trajectories:
            reward = trajectory.reward
            if not trajectory.status.trainable:
                dropped.add(str(trajectory.status), trajectory.error or trajectory.stop_reason)
            elif reward is None or reward.value is None:
                dropped.add("unscored", (reward and reward.reason) or "no reason given")
            elif reason := self._judge(self._sample, trajectory, f"trajectory {trajectory.id}"):
                dropped.add(reason)
            else:
                left.append(trajectory)
        return replace(group, trajectories=tuple(left))

    def _judge(self, filters: Sequence[NamedFilter], item: Any, what: str) -> str | None:
        for entry in filters:
            try:
                verdict = entry.filter.keep(item)
            except (Exception, SystemExit) as error:
                raise RolloutError(
                    f"filter {entry.name} raised {type(error).__name__} on {what}: {error}",
                    remedy="Mend the filter: a group is neither kept nor dropped by an error.",
                ) from error
            if not isinstance(verdict, Verdict):
                raise RolloutError(f"filter {entry.name} must return a Verdict for {what}; got {verdict!r}")
            if not verdict.keep:
                return verdict.reason or entry.name
        return None
