"""Rewards: every model scores, the weighted sum counts, and a failure is ``None``, never 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import RolloutError
from miles_core.lib.calls import call
from miles_core.lib.numbers import is_finite
from miles_core.types import Reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.reward_models import RewardModel
    from miles_core.types import Trajectory


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """A reward model with its name in components, its weight, and the seconds that one call may take."""

    name: str
    model: RewardModel
    weight: float = 1.0
    timeout: float = 60.0


class Scorer:
    """Scores the trajectories of a group; without models the environment's rewards are summed."""

    def __init__(self, models: Sequence[WeightedReward]) -> None:
        self._models = tuple(models)

    async def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with rewards; aborted and failed ones get ``None`` with the reason and are not sent.

        Raises:
            RolloutError: if a reward model breaks its contract, such as returning too few rewards.
        """
        valid = [trajectory for trajectory in trajectories if trajectory.status.trainable]
        parts = [await self._call(entry, valid) for entry in self._models]
        rewards = {t.id: self._combine(t, [part[i] for part in parts]) for i, t in enumerate(valid)}
        return [_with_reward(t, rewards.get(t.id) or _unscored(t)) for t in trajectories]

    def _combine(self, trajectory: Trajectory, rewards: Sequence[Reward]) -> Reward:
        if not self._models:
            return _finite("environment", Reward(sum(map(float, trajectory.step_rewards))))
        components = {entry.name: reward.value for entry, reward in zip(self._models, rewards, strict=True)}
        for entry, reward in zip(self._models, rewards, strict=True):
            if reward.value is None:
                return Reward(None, f"{entry.name}: {reward.reason or 'no reason given'}", components)
        total = sum(e.weight * float(r.value or 0.0) for e, r in zip(self._models, rewards, strict=True))
        return _finite("the weighted sum", Reward(total, None, components))

    async def _call(self, entry: WeightedReward, items: Sequence[Trajectory]) -> list[Reward]:
        if not items:
            return []
        if entry.model.scope == "group":
            return await self._score(entry, items)
        results: list[Reward | None] = [None] * len(items)

        async def one(index: int) -> None:
            results[index] = (await self._score(entry, [items[index]]))[0]

        async with anyio.create_task_group() as tasks:
            for index in range(len(items)):
                tasks.start_soon(one, index)
        return [reward for reward in results if reward is not None]

    async def _score(self, entry: WeightedReward, items: Sequence[Trajectory]) -> list[Reward]:
        rewards = [Reward(None, f"took longer than {entry.timeout:g} s")] * len(items)
        with anyio.move_on_after(entry.timeout):
            try:
                rewards = await call(entry.model.score, items)
            except Exception as error:  # noqa: BLE001 - a grader's failure is a missing reward, whatever it raised
                return [Reward(None, f"{type(error).__name__}: {error}")] * len(items)
        if not isinstance(rewards, list) or len(rewards) != len(items):
            got = len(rewards) if isinstance(rewards, list) else type(rewards).__name__
            raise RolloutError(
                f"reward model {entry.name}: score() must return {len(items)} rewards, one per item; got {got}"
            )
        return [_finite(entry.name, reward) for reward in rewards]


def _finite(name: str, reward: Reward) -> Reward:
    if not isinstance(reward, Reward):
        raise RolloutError(f"reward model {name}: score() must return Reward objects; got {type(reward).__name__}")
    value = reward.value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RolloutError(f"reward model {name}: a reward's value must be a number or None; got {value!r}")
    if value is not None and not is_finite(value):
        return Reward(None, f"the reward is {value}" if isinstance(value, float) else "the reward is too large")
    return reward


def _unscored(trajectory: Trajectory) -> Reward:
    return Reward(None, f"{trajectory.status}: {trajectory.error or trajectory.stop_reason}")


def _with_reward(trajectory: Trajectory, reward: Reward) -> Trajectory:
    samples = tuple(replace(sample, reward=reward) for sample in trajectory.samples)
    return replace(trajectory, reward=reward, samples=samples)
