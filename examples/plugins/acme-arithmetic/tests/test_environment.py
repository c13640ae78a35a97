"""The environment against the rules of its kind, and against episodes worked out by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest
from acme_arithmetic.environment import Arithmetic

from miles_core.api import Message, Observation, PluginContext, PluginError, Step, Task
from miles_core.testing import EnvironmentSuite

TASK = Task("2+3", (Message("user", "2+3=?"),), label="5")


class TestArithmetic(EnvironmentSuite):
    plugin = "acme-arithmetic/arithmetic"
    options: ClassVar = {"tries": 3}
    tasks = (TASK,)
    responses = ("4", "6", "5")


def play(*answers: str, tries: int = 2) -> list[Step]:
    environment = Arithmetic(Arithmetic.Config(tries=tries), PluginContext())
    environment.reset(TASK, seed=0)
    return [environment.step(Message("assistant", answer)) for answer in answers]


def test_a_wrong_answer_is_told_its_direction_and_the_right_one_ends_the_episode() -> None:
    low, high, right = play("4", "7", "5", tries=3)
    assert (low.observation, low.done) == (Observation("more"), False)
    assert (high.observation, high.done) == (Observation("less"), False)
    assert (right.observation, right.done) == (None, True)
    assert dict(right.info) == {"answer": 5, "tries": 3}


def test_the_last_try_ends_the_episode_without_a_hint() -> None:
    assert [step.done for step in play("4", "4")] == [False, True]


@pytest.mark.parametrize("answer", ["five", "", "5.0", "4 5", "9" * 10])
def test_a_turn_that_is_no_number_ends_the_episode(answer: str) -> None:
    (step,) = play(answer)
    assert step.done
    assert step.info["answer"] is None


@pytest.mark.parametrize("label", [None, "five"])
def test_a_task_without_a_number_as_label_is_refused_by_name(label: str | None) -> None:
    environment = Arithmetic(Arithmetic.Config(), PluginContext())
    with pytest.raises(PluginError, match=r"label of task x is (None|'five'), which is no number"):
        environment.reset(Task("x", (), label=label), seed=0)
