"""Rewards: every model scores, the weighted sum counts, and a failure is ``None``, never 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import RolloutError
from miles_core.kinds.reward_models import OFFERS
from miles_core.lib.error_text import error_text, value_text
from miles_core.lib.numbers import is_finite
from miles_core.lib.plugin_calls import CallTimeoutError, PluginCalls
from miles_core.lib.signatures import accepted
from miles_core.types import Reward
from miles_core.types.frozen import FrozenDict, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.reward_models import RewardModel
    from miles_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """A reward model with its name in components, its weight, and the seconds that one call may take.

    ``calls`` are those into the plugin; by default errors call it by its name.
    """

    name: str
    model: RewardModel
    weight: float = 1.0
    timeout: float = 60.0
    calls: PluginCalls | None = None


class Scorer:
    """Scores the trajectories of a group; without models the environment's rewards are summed."""

    def __init__(self, models: Sequence[WeightedReward]) -> None:
        self._models = tuple(_Model(entry) for entry in models)

    async def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with rewards, read-only; aborted and failed ones get ``None`` with the reason, unsent.

        Raises:
            RolloutError: if a reward model breaks its contract, such as returning too few rewards.
        """
        trajectories = [frozen(trajectory) for trajectory in trajectories]
        valid = tuple(trajectory for trajectory in trajectories if trajectory.status.trainable)
        parts = [await model.score(valid) for model in self._models]
        rewards = {t.id: self._combine(t, [part[i] for part in parts]) for i, t in enumerate(valid)}
        return [_with_reward(t, rewards.get(t.id) or _unscored(t)) for t in trajectories]

    def _combine(self, trajectory: Trajectory, rewards: Sequence[Reward]) -> Reward:
        if not self._models:
            return _finite("environment", Reward(sum(map(float, trajectory.step_rewards))))
        values = {model.entry.name: reward.value for model, reward in zip(self._models, rewards, strict=True)}
        components = FrozenDict(values)
        for model, reward in zip(self._models, rewards, strict=True):
            if reward.value is None:
                return Reward(None, f"{model.calls.title}: {reward.reason or 'no reason given'}", components)
        total = sum(m.entry.weight * float(r.value or 0.0) for m, r in zip(self._models, rewards, strict=True))
        return _finite("the weighted sum", Reward(total, None, components))


class _Model:
    """One reward model, called for single trajectories or for whole groups as its scope says."""

    def __init__(self, entry: WeightedReward) -> None:
        self.entry = entry
        self.calls = entry.calls or PluginCalls(entry.name, f"reward model {entry.name}")
        self._offers = accepted(entry.model.score, 1, OFFERS)

    async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
        """One reward per item."""
        if not items:
            return []
        if self.entry.model.scope == "group":
            return await self._score(items, items)
        results: list[Reward | None] = [None] * len(items)

        async def one(index: int) -> None:
            results[index] = (await self._score([items[index]], items))[0]

        async with anyio.create_task_group() as tasks:
            for index in range(len(items)):
                tasks.start_soon(one, index)
        return [reward for reward in results if reward is not None]

    async def _score(self, items: Sequence[Trajectory], group: Sequence[Trajectory]) -> list[Reward]:
        offered = {"group": group, "task": items[0].task}
        keywords = {name: offered[name] for name in self._offers}
        try:
            rewards = await self.calls("score", self.entry.model.score, items, limit=self.entry.timeout, **keywords)
        except CallTimeoutError as error:
            return [Reward(None, str(error))] * len(items)
        except Exception as error:  # noqa: BLE001 - a grader's failure is a missing reward, whatever it raised
            return [Reward(None, error_text(error))] * len(items)
        if not isinstance(rewards, list) or len(rewards) != len(items):
            got = len(rewards) if isinstance(rewards, list) else type(rewards).__name__
            raise RolloutError(f"{self.calls.title}: score() must return {len(items)} rewards, one per item; got {got}")
        return [_finite(self.calls.title, reward) for reward in rewards]


def _finite(title: str, reward: Any) -> Reward:
    if not isinstance(reward, Reward):
        raise RolloutError(f"{title}: score() must return Reward objects; got {type(reward).__name__}")
    value = reward.value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RolloutError(f"{title}: a reward's value must be a number or None; got {value_text(value)}")
    if value is not None and not is_finite(value):
        return Reward(None, f"the reward is {value}" if isinstance(value, float) else "the reward is too large")
    return reward


def _unscored(trajectory: Trajectory) -> Reward:
    return Reward(None, f"{trajectory.status}: {trajectory.error or trajectory.stop_reason}")


def _with_reward(trajectory: Trajectory, reward: Reward) -> Trajectory:
    own = {} if reward.value is None else {name: Reward(value) for name, value in trajectory.agent_rewards.items()}
    samples = tuple(replace(sample, reward=own.get(sample.agent_id, reward)) for sample in trajectory.samples)
    return replace(trajectory, reward=reward, samples=samples)
