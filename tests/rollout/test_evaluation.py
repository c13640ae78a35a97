"""Evaluation: pass@k, intervals, and the same tasks each time."""

from __future__ import annotations

from itertools import combinations

import pytest

from miles_core.errors import RolloutError
from miles_core.rollout.evaluation import Evaluation, pass_at_k, summarise
from miles_core.rollout.tasks import Pending
from miles_core.types import Group, Status

from .conftest import make_trajectory

TASK = make_trajectory("x").task


def group(index: int, *rewards: float | None) -> Group:
    trajectories = tuple(
        make_trajectory(f"e0-g{index}-t{i}", r, status=Status.FAILED if r is None else Status.COMPLETED)
        for i, r in enumerate(rewards)
    )
    return Group(f"e0-g{index}", index, TASK, trajectories)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [1] * passed + [0] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = [max(chosen) for chosen in combinations(outcomes, k)]
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(subsets) / len(subsets))


def test_the_summary_has_mean_passes_and_an_interval_around_the_mean() -> None:
    metrics = summarise(
        [group(0, 1, 0, 1, 0, 0), group(1, 0, 0, 0, 0, 0), group(2, 1, 1, 1, 1, 1)], pass_reward=1.0, seed=0
    )
    assert metrics["eval/reward"] == pytest.approx((0.4 + 0 + 1) / 3)
    assert [name for name in metrics if "pass@" in name] == ["eval/pass@1", "eval/pass@2", "eval/pass@4", "eval/pass@5"]
    assert metrics["eval/pass@1"] == pytest.approx(metrics["eval/reward"])
    assert metrics["eval/pass@5"] == pytest.approx(2 / 3)
    assert metrics["eval/reward_low"] <= metrics["eval/reward"] <= metrics["eval/reward_high"]
    assert metrics["eval/tasks"] == 3


def test_the_interval_narrows_with_more_tasks() -> None:
    def width(tasks: int) -> float:
        metrics = summarise([group(i, float(i % 2)) for i in range(tasks)], pass_reward=1.0, seed=0)
        return metrics["eval/reward_high"] - metrics["eval/reward_low"]

    assert width(200) < width(10) / 3


def test_unscored_trajectories_are_counted_and_never_zero() -> None:
    metrics = summarise([group(0, 1.0, None), group(1, None)], pass_reward=1.0, seed=0)
    assert (metrics["eval/reward"], metrics["eval/unscored"], metrics["eval/tasks"]) == (1.0, 2, 1)


def test_nothing_scored_is_an_error() -> None:
    with pytest.raises(RolloutError, match="none of the evaluation's 2 trajectories was scored"):
        summarise([group(0, None, None)], pass_reward=1.0, seed=0)


@pytest.mark.anyio
async def test_every_evaluation_runs_the_same_tasks() -> None:
    seen = []

    class Runner:
        async def run(self, work) -> None:
            seen.append((work.id, work.pending.epoch, work.pending.task.id))
            work.group = group(work.index, 1.0)

    finished: list[int] = []
    evaluation = Evaluation([Pending(0, TASK)] * 2, Runner(), pass_reward=1.0, seed=0)
    await evaluation.run(0, finished.append)
    await evaluation.run(5)
    assert [entry[1:] for entry in seen[:2]] == [entry[1:] for entry in seen[2:]]
    assert [entry[0] for entry in seen] == ["e0-g0", "e0-g1", "e5-g0", "e5-g1"]
    assert finished == [1, 2]
