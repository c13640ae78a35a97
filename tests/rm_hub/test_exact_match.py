"""Exact match of the last answer."""

from __future__ import annotations

import pytest

from miles_core.kinds.base import PluginContext
from miles_core.types import Message, Reward, Status, Task, Trajectory
from rm_hub.exact_match import ExactMatch, ExactMatchConfig

pytestmark = pytest.mark.anyio


def trajectory(*answers: str, label: str | None = "Paris") -> Trajectory:
    task = Task("t", (Message("user", "q"),), label=label)
    turns = [m for answer in answers for m in (Message("assistant", answer), Message("tool", "x"))]
    return Trajectory("x", task, (*task.messages, *turns[:-1]), (), Status.COMPLETED)


async def score(item: Trajectory, **options) -> Reward:
    [reward] = await ExactMatch(ExactMatchConfig(**options), PluginContext()).score([item])
    return reward


@pytest.mark.parametrize(
    ("answers", "options", "value"),
    [
        (["Paris"], {}, 1.0),
        ([" Paris\n"], {}, 1.0),
        (["paris"], {}, 0.0),
        (["paris"], {"ignore_case": True}, 1.0),
        (["Paris."], {}, 0.0),
        (["Paris", "Rome"], {}, 0.0),
        (["Paris"], {"min_turns": 2}, 0.0),
        (["ask", "Paris"], {"min_turns": 2}, 1.0),
    ],
)
async def test_only_the_last_answer_counts(answers: list[str], options, value: float) -> None:
    assert (await score(trajectory(*answers), **options)).value == value


async def test_a_task_without_label_has_no_reward() -> None:
    reward = await score(trajectory("Paris", label=None))
    assert reward.value is None
    assert "no label" in (reward.reason or "")
