"""GRPO against numbers worked out by hand; the standard deviation has ddof 1."""

from __future__ import annotations

import numpy as np
import pytest

from miles_core.kinds.base import PluginContext
from miles_core.types import StepBatch
from miles_plugins.advantages.grpo import Grpo, GrpoConfig


def batch(rewards, groups=None, trajectories=None, lengths=None) -> StepBatch:
    count = len(rewards)
    lengths = lengths or [1] * count
    total = sum(lengths)
    zeros = np.zeros(total, np.float32)
    return StepBatch(
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]),
        tokens=zeros.astype(np.int32),
        loss_mask=np.ones(total, bool),
        temperatures=zeros + 1,
        rollout_logprobs=zeros,
        rewards=np.array(rewards, np.float64),
        group_index=np.array(groups or [0] * count),
        trajectory_index=np.array(trajectories or range(count)),
        denominator_tokens=total,
    )


def estimate(step: StepBatch, **options) -> list[float]:
    return Grpo(GrpoConfig(**options), PluginContext()).estimate(step).advantages.tolist()


def test_one_success_of_four() -> None:
    assert estimate(batch([1, 0, 0, 0]), eps=1e-12) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-6)


@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [0.1 + 0.2, 0.3, 0.3], [0.7]])
def test_equal_rewards_and_single_trajectories_get_exactly_zero(rewards) -> None:
    assert estimate(batch(rewards)) == [0.0] * len(rewards)


def test_the_baseline_is_over_trajectories_not_over_their_samples() -> None:
    split = batch([1, 1, 1, 0], trajectories=[0, 0, 0, 1])
    assert estimate(split, divide_by_std=False) == pytest.approx([0.5, 0.5, 0.5, -0.5])


def test_groups_of_different_sizes_do_not_mix() -> None:
    mixed = batch([1, 0, 5, 5, 8], groups=[0, 0, 1, 1, 1])
    assert estimate(mixed, divide_by_std=False) == pytest.approx([0.5, -0.5, -1, -1, 2])


def test_every_token_of_a_sample_gets_its_advantage() -> None:
    values = estimate(batch([1, 0], lengths=[2, 3]), divide_by_std=False)
    assert values == pytest.approx([0.5, 0.5, -0.5, -0.5, -0.5])
