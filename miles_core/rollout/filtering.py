"""Filters: applied in config order, every drop counted by its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError
from miles_core.kinds.filters import Verdict
from miles_core.lib.error_text import error_text, value_text
from miles_core.lib.plugin_calls import CallTimeoutError, ItemError, PluginCalls
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from miles_core.kinds.filters import BufferedGroup, Filter
    from miles_core.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter, its name where it gives no reason, and the seconds that judging one item may take.

    ``calls`` are those into the plugin; by default errors call it by its name.
    """

    name: str
    filter: Filter
    timeout: float = 60.0
    calls: PluginCalls | None = None


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
        self._sample = _Stage(entry for entry in filters if entry.filter.stage == "sample")
        self._group = _Stage(entry for entry in filters if entry.filter.stage == "group")
        self._buffer = _Stage(entry for entry in filters if entry.filter.stage == "buffer")

    async def apply(self, groups: Sequence[Group], dropped: Drops) -> list[Group]:
        """The groups that are left, in order; the groups or trajectories that each reason dropped go to ``dropped``.

        Trajectories that failed, were aborted or have no reward never reach a filter: they are dropped first, as
        ``failed``, ``aborted`` or ``unscored``. Nothing is counted unless all filters have judged.

        Raises:
            RolloutError: if a filter raises, takes too long or returns no verdict; neither keep nor drop is assumed.
        """
        drops = [drop for group in groups for drop in _unusable(group)]
        usable = [t for group in groups for t in group.trajectories if _reason_against(t) is None]
        reasons = await self._sample.judge(usable, [f"trajectory {t.id}" for t in usable])
        drops += [(reason, None) for reason in reasons if reason is not None]
        left = {id(t) for t, reason in zip(usable, reasons, strict=True) if reason is None}
        parts = [replace(g, trajectories=tuple(t for t in g.trajectories if id(t) in left)) for g in groups]
        parts = [group for group in parts if group.trajectories]
        reasons = await self._group.judge(parts, [f"group {group.id}" for group in parts])
        drops += [(reason, None) for reason in reasons if reason is not None]
        for reason, cause in drops:
            dropped.add(reason, cause)
        return [group for group, reason in zip(parts, reasons, strict=True) if reason is None]

    async def apply_in_buffer(self, groups: Sequence[BufferedGroup], dropped: Counter[str]) -> list[Group]:
        """The groups that are left when the trainer takes them, by the filters of stage ``"buffer"``.

        Raises:
            RolloutError: if a filter raises, takes too long or returns no verdict.
        """
        reasons = await self._buffer.judge(groups, [f"group {item.group.id}" for item in groups])
        dropped.update(reason for reason in reasons if reason is not None)
        return [item.group for item, reason in zip(groups, reasons, strict=True) if reason is None]


class _Stage:
    """The filters of one stage."""

    def __init__(self, filters: Iterator[NamedFilter]) -> None:
        self._filters = [(entry, entry.calls or PluginCalls(entry.name, f"filter {entry.name}")) for entry in filters]

    async def judge(self, items: Sequence[Any], names: Sequence[str]) -> list[str | None]:
        """Why each item is dropped: the reason of the first filter that drops it; ``None`` for those that are kept."""
        reasons: list[str | None] = [None] * len(items)
        shown = [frozen(item) for item in items] if self._filters else []
        for entry, calls in self._filters:
            left = [index for index, reason in enumerate(reasons) if reason is None]
            verdicts = await _verdicts(entry, calls, [shown[i] for i in left], [names[i] for i in left])
            for index, verdict in zip(left, verdicts, strict=True):
                reasons[index] = None if verdict.keep else verdict.reason or entry.name
        return reasons


async def _verdicts(
    entry: NamedFilter, calls: PluginCalls, items: Sequence[Any], names: Sequence[str]
) -> list[Verdict]:
    if not items:
        return []
    try:
        verdicts = await calls.each("keep", entry.filter.keep, items, limit=entry.timeout)
    except ItemError as failed:
        error = failed.__cause__ or failed
        text = str(error) if isinstance(error, CallTimeoutError) else error_text(error)
        raise RolloutError(
            f"{calls.title} failed on {names[failed.index]}: {text}",
            remedy="Mend the filter: a group is neither kept nor dropped by an error.",
        ) from error
    for verdict, name in zip(verdicts, names, strict=True):
        if not isinstance(verdict, Verdict):
            raise RolloutError(f"{calls.title} must return a Verdict for {name}; got {value_text(verdict)}")
    return verdicts


def _unusable(group: Group) -> Iterator[tuple[str, str | None]]:
    for trajectory in group.trajectories:
        if (drop := _reason_against(trajectory)) is not None:
            yield drop


def _reason_against(trajectory: Trajectory) -> tuple[str, str | None] | None:
    """Why a trajectory never reaches a filter, and the cause."""
    reward = trajectory.reward
    if not trajectory.status.trainable:
        return str(trajectory.status), trajectory.error or trajectory.stop_reason
    if reward is None or reward.value is None:
        return "unscored", (reward and reward.reason) or "no reason given"
    return None
