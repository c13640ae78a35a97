"""Evaluation: fixed tasks, scored as in training; mean, pass@k and a bootstrap interval over tasks."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import RolloutError
from miles_core.rollout.groups import GroupWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.rollout.groups import GroupRunner
    from miles_core.rollout.tasks import Pending
    from miles_core.types import Group

RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class EvalResult:
    """``groups`` hold the trajectories of each task; ``metrics`` their summary, by name (``eval/...``)."""

    groups: tuple[Group, ...]
    metrics: dict[str, float]


class Evaluation:
    """Runs the same tasks with the same seeds each time, so that two policies are compared on equal terms."""

    def __init__(self, tasks: Sequence[Pending], runner: GroupRunner, *, pass_reward: float, seed: int) -> None:
        self._tasks = tuple(tasks)
        self._runner = runner
        self._pass_reward = pass_reward
        self._seed = seed

    async def run(self, step: int, on_task: Callable[[int], None] = lambda _: None) -> EvalResult:
        """Generate and score all tasks; ``on_task`` gets the number of finished ones.

        Raises:
            RolloutError: if no trajectory can be scored, with the first cause.
        """
        work = [GroupWork(f"e{step}-g{index}", index, task) for index, task in enumerate(self._tasks)]
        finished = 0

        async def one(item: GroupWork) -> None:
            nonlocal finished
            await self._runner.run(item)
            finished += 1
            on_task(finished)

        async with anyio.create_task_group() as tasks:
            for item in work:
                tasks.start_soon(one, item)
        groups = tuple(item.group for item in work if item.group is not None)
        return EvalResult(groups, summarise(groups, pass_reward=self._pass_reward, seed=self._seed))


def summarise(groups: Sequence[Group], *, pass_reward: float, seed: int) -> dict[str, float]:
    """Metrics of evaluated groups.

    ``eval/reward`` is the mean over tasks of each task's mean reward, ``eval/reward_low`` and ``_high`` its 95 %
    percentile interval from 1000 bootstrap resamples of tasks. ``eval/pass@k`` is the unbiased estimate of Chen et al.
    2021 (arXiv 2107.03374) for k = 1, 2, 4, ... and the number of samples. Trajectories without a score are counted as
    ``eval/unscored`` and are in neither.

    Raises:
        RolloutError: if nothing could be scored.
    """
    import numpy as np

    scored = [group.rewards for group in groups if group.rewards]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not scored:
        first = next((t.error or (t.reward and t.reward.reason) or t.stop_reason for t in trajectories), "no task")
        raise RolloutError(f"none of the evaluation's {len(trajectories)} trajectories was scored; the first: {first}")
    means = np.array([sum(rewards) / len(rewards) for rewards in scored])
    low, high = _interval(means, seed)
    lengths = [sample.trained_tokens for trajectory in trajectories for sample in trajectory.samples]
    metrics = {
        "eval/reward": float(means.mean()),
        "eval/reward_low": low,
        "eval/reward_high": high,
        "eval/tasks": float(len(scored)),
        "eval/unscored": float(len(trajectories) - sum(len(rewards) for rewards in scored)),
        "eval/response_length_mean": sum(lengths) / len(lengths) if lengths else 0.0,
    }
    for k in _ks(min(len(rewards) for rewards in scored)):
        passes = [pass_at_k(len(r), sum(value >= pass_reward for value in r), k) for r in scored]
        metrics[f"eval/pass@{k}"] = sum(passes) / len(passes)
    return metrics


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of ``k`` of the ``samples`` passes, of which ``passed`` do."""
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def _ks(samples: int) -> list[int]:
    powers = [1 << i for i in range(samples.bit_length())]
    return sorted({k for k in (*powers, samples) if k <= samples})


def _interval(means: NDArray[np.float64], seed: int) -> tuple[float, float]:
    import numpy as np

    rng = np.random.default_rng([seed, 2])
    resampled = means[rng.integers(len(means), size=(RESAMPLES, len(means)))].mean(1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)
