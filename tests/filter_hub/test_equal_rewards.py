"""Groups without a learning signal."""

from __future__ import annotations

import pytest

from filter_hub.equal_rewards import EqualRewards
from miles_core.kinds.base import PluginContext
from miles_core.types import Group, Message, Reward, Status, Task, Trajectory

TASK = Task("t", (Message("user", "q"),))


def verdict(*rewards: float | None):
    trajectories = tuple(
        Trajectory(f"x{i}", TASK, (), (), Status.COMPLETED, Reward(reward)) for i, reward in enumerate(rewards)
    )
    return EqualRewards(None, PluginContext()).keep(Group("g", 0, TASK, trajectories))


@pytest.mark.parametrize("rewards", [(1, 1), (0.3,) * 6, (0.1 + 0.2, 0.3), (0.7,), (), (None, None), (1, None, 1)])
def test_equal_rewards_are_dropped_with_their_reason(rewards) -> None:
    assert (verdict(*rewards).keep, verdict(*rewards).reason) == (False, "equal_rewards")


@pytest.mark.parametrize("rewards", [(0, 1), (0.3, 0.3, 0.31), (None, 0, 1)])
def test_different_rewards_are_kept(rewards) -> None:
    assert verdict(*rewards).keep
