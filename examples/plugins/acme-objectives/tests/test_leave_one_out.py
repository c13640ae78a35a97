"""The estimator against the rules of its kind, and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from acme_objectives.leave_one_out import LeaveOneOut

from miles_core.api import PluginContext, StepBatch
from miles_core.testing import AdvantageEstimatorSuite


class TestLeaveOneOut(AdvantageEstimatorSuite):
    plugin = "acme-objectives/leave_one_out"


def advantages(
    rewards: list[float], groups: list[int], trajectories: list[int] | None = None, *, standardise: bool = False
) -> list[float]:
    """One advantage per sample, of samples of two tokens each."""
    count = len(rewards)
    zeros = np.zeros(2 * count, np.float32)
    step = StepBatch(
        cu_seqlens=np.arange(count + 1) * 2,
        tokens=zeros.astype(np.int32),
        loss_mask=np.tile([False, True], count),
        temperatures=zeros + 1,
        rollout_logprobs=zeros,
        rewards=np.array(rewards, np.float64),
        group_index=np.array(groups),
        trajectory_index=np.array(trajectories or range(count)),
        denominator_tokens=count,
    )
    estimator = LeaveOneOut(LeaveOneOut.Config(standardise=standardise), PluginContext())
    found = estimator.estimate(step).advantages
    assert found.dtype == np.float32
    assert (found[::2] == found[1::2]).all()
    return [float(value) for value in found[::2]]


def test_each_reward_is_compared_with_the_mean_of_the_others() -> None:
    assert advantages([3.0, 0.0, 0.0, 1.0, 2.0], [0, 0, 0, 1, 1]) == pytest.approx([3.0, -1.5, -1.5, -1.0, 1.0])


def test_a_group_of_one_has_no_advantage_and_takes_no_part_in_the_statistics() -> None:
    assert advantages([9.0, 1.0, 2.0], [0, 1, 1]) == pytest.approx([0.0, -1.0, 1.0])
    assert advantages([9.0, 1.0, 2.0], [0, 1, 1], standardise=True) == pytest.approx([0.0, -1.0, 1.0], abs=1e-5)


def test_standardised_advantages_of_a_step_have_mean_zero_and_deviation_one() -> None:
    found = advantages([3.0, 0.0, 0.0, 1.0, 2.0], [0, 0, 0, 1, 1], standardise=True)
    assert np.mean(found) == pytest.approx(0.0, abs=1e-6)
    assert np.std(found) == pytest.approx(1.0, abs=1e-5)


def test_a_trajectory_in_two_samples_counts_once() -> None:
    assert advantages([3.0, 3.0, 0.0, 0.0], [0, 0, 0, 0], [0, 0, 1, 2]) == pytest.approx([3.0, 3.0, -1.5, -1.5])


@pytest.mark.parametrize("standardise", [True, False])
def test_equal_rewards_give_exactly_zero(standardise: bool) -> None:
    assert advantages([0.1, 0.1, 0.1], [0, 0, 0], standardise=standardise) == [0.0, 0.0, 0.0]
