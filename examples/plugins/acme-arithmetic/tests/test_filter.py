"""The filter against the rules of its kind, and the reason of each drop."""

from __future__ import annotations

import pytest
from acme_arithmetic.filter import Difficulty

from miles_core.api import Group, Message, PluginContext, Reward, Status, Task, Trajectory
from miles_core.testing import FilterSuite

TASK = Task("2+3", (Message("user", "2+3=?"),), label="5")


class TestDifficulty(FilterSuite):
    plugin = "acme-arithmetic/difficulty"


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((0.2, 0.8), ""),
        ((0.0, 0.1), "too_hard"),
        ((1.0, 0.9), "too_easy"),
        ((0.5, 0.5), "no_spread"),
        ((None, None), "unscored"),
    ],
)
def test_a_group_is_kept_or_dropped_with_its_reason(rewards: tuple[float | None, ...], reason: str) -> None:
    scored = (Trajectory("t", TASK, TASK.messages, (), Status.COMPLETED, Reward(reward)) for reward in rewards)
    judge = Difficulty(Difficulty.Config(low=0.1, high=0.9), PluginContext())
    verdict = judge.keep(Group("g", 0, TASK, tuple(scored)))
    assert (verdict.keep, verdict.reason) == (not reason, reason)
