"""What one step generated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.types import Group
from miles_core.types.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, eq=False)
class StepRollout:
    """``groups`` of the step in order, ``kept`` after filters, drops by reason.

    A group is in exactly one step: one that was generated but is left over counts where it is trained. ``causes``
    holds, for drops that are no verdict on the policy, what made the first of them. ``counters`` are metrics of the
    scheduler and of the data.
    """

    step: int
    groups: tuple[Group, ...]
    kept: tuple[Group, ...]
    dropped: Counter[str] = field(default_factory=Counter)
    causes: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        """Rewards of all scored trajectories, dropped groups included."""
        return [reward for group in self.groups for reward in group.rewards]

    @property
    def generated_tokens(self) -> int:
        """Tokens that the policy generated for trajectories that may be trained; what reductions divide by."""
        return sum(
            sample.trained_tokens
            for group in self.groups
            for trajectory in group.trajectories
            if trajectory.status.trainable
            for sample in trajectory.samples
        )

    def to_record(self) -> dict[str, Any]:
        """A plain record; kept groups are noted as places in ``groups``, so that arrays are stored once."""
        places = {group.id: place for place, group in enumerate(self.groups)}
        kept = [[places[group.id], [trajectory.id for trajectory in group.trajectories]] for group in self.kept]
        return {
            "step": self.step,
            "groups": [to_record(group) for group in self.groups],
            "kept": kept,
            "dropped": dict(self.dropped),
            "causes": dict(self.causes),
            "counters": dict(self.counters),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StepRollout:
        """What :meth:`to_record` wrote.

        Raises:
            ValueError: if the record is incomplete.
        """
        groups = tuple(from_record(group, Group) for group in record["groups"])
        kept = []
        for place, ids in record["kept"]:
            group, wanted = groups[place], set(ids)
            kept.append(replace(group, trajectories=tuple(t for t in group.trajectories if t.id in wanted)))
        dropped = Counter(record["dropped"])
        return cls(record["step"], groups, tuple(kept), dropped, record["causes"], record["counters"])
