"""The reward model against the rules of its kind, and against numbers worked out by hand."""

from __future__ import annotations

import pytest
from acme_arithmetic.reward import Closeness

from miles_core.api import Message, PluginContext, Status, Task, Trajectory
from miles_core.testing import RewardModelSuite


class TestCloseness(RewardModelSuite):
    plugin = "acme-arithmetic/closeness"


def trajectory(*answers: str, label: str | None = "5") -> Trajectory:
    task = Task("2+3", (Message("user", "2+3=?"),), label=label)
    turns = [message for text in answers for message in (Message("assistant", text), Message("user", "more"))]
    return Trajectory("t", task, (*task.messages, *turns[:-1]), (), Status.COMPLETED)


async def value(item: Trajectory) -> float | None:
    (reward,) = await Closeness(Closeness.Config(discount=0.5), PluginContext()).score([item])
    return reward.value


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "expected"),
    [(("5",), 1.0), (("4",), 0.5), (("9",), 0.2), (("4", "5"), 0.5), (("4", "6"), 0.25), (("4", "six"), 0.0)],
)
async def test_distance_and_tries_lower_the_reward(answers: tuple[str, ...], expected: float) -> None:
    assert await value(trajectory(*answers)) == pytest.approx(expected)


@pytest.mark.anyio
async def test_a_task_without_a_number_as_label_has_no_reward() -> None:
    assert await value(trajectory("5", label="five")) is None
