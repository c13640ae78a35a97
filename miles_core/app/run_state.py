"""What a run knows of itself between two steps; part of every checkpoint."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.types.versions import NONE_SKIPPED, SkippedVersions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.rollout.step import StepRollout

RECENT = 5


@dataclass(slots=True)
class EmptySteps:
    """Steps in a row that had no group to train on, and what became of theirs."""

    steps: int = 0
    reward_sum: float = 0.0
    rewards: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    causes: dict[str, str] = field(default_factory=dict)

    def add(self, rollout: StepRollout) -> None:
        """Count a step; one that has something to train on begins the row anew."""
        if rollout.kept:
            self.steps, self.reward_sum, self.rewards = 0, 0.0, 0
            self.dropped.clear()
            self.causes.clear()
            return
        self.steps += 1
        self.reward_sum += sum(rollout.rewards)
        self.rewards += len(rollout.rewards)
        self.dropped.update(rollout.dropped)
        for reason, cause in rollout.causes.items():
            self.causes.setdefault(reason, cause)

    @property
    def mean_reward(self) -> float | None:
        """The mean over all of their scored trajectories."""
        return self.reward_sum / self.rewards if self.rewards else None


@dataclass(slots=True)
class RunState:
    """``step`` steps are done, ``version`` is committed; ``seconds`` of training count those before a resume too.

    ``skipped`` are version numbers up to ``version`` that count as no update.
    """

    step: int = 0
    version: int = 0
    seconds: float = 0.0
    first_reward: float | None = None
    recent_rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    empty: EmptySteps = field(default_factory=EmptySteps)
    skipped: SkippedVersions = NONE_SKIPPED

    @property
    def updates(self) -> int:
        """How many weight updates led to the committed version."""
        return self.skipped.updates(0, self.version)

    def go_past(self, version: int | None) -> None:
        """Call the present weights by a free number if engines have heard of ``version``, which is above theirs."""
        if version is not None and version > self.version:
            self.skipped = self.skipped.extended(self.version + 1, version + 1)
            self.version = version + 1

    def add_reward(self, reward: float) -> None:
        """Note a step's mean reward."""
        if self.first_reward is None:
            self.first_reward = reward
        self.recent_rewards.append(reward)

    @property
    def last_reward(self) -> float | None:
        """The mean over the last steps."""
        return sum(self.recent_rewards) / len(self.recent_rewards) if self.recent_rewards else None

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        empty = self.empty
        return {
            "step": self.step,
            "version": self.version,
            "skipped": [list(one) for one in self.skipped.ranges],
            "seconds": self.seconds,
            "first_reward": self.first_reward,
            "recent_rewards": list(self.recent_rewards),
            "empty": {
                "steps": empty.steps,
                "reward_sum": empty.reward_sum,
                "rewards": empty.rewards,
                "dropped": dict(empty.dropped),
                "causes": empty.causes,
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunState:
        """What :meth:`to_json` gave; fields that an older version did not write have their defaults."""
        empty = dict(data.get("empty", {}))
        empty["dropped"] = Counter(empty.get("dropped", {}))
        return cls(
            step=data["step"],
            version=data["version"],
            skipped=SkippedVersions(tuple((first, last) for first, last in data.get("skipped", ()))),
            seconds=data.get("seconds", 0.0),
            first_reward=data.get("first_reward"),
            recent_rewards=deque(data.get("recent_rewards", ()), maxlen=RECENT),
            empty=EmptySteps(**empty),
        )
