"""What an environment hands over is kept as it was."""

from __future__ import annotations

import pytest

from miles_core.kinds.environments import Step, is_agent


def test_the_info_of_a_step_is_a_read_only_copy() -> None:
    mine = {"board": [1]}
    step = Step(info=mine)
    mine["board"].append(2)
    assert step.info == {"board": (1,)}
    with pytest.raises(TypeError, match="read-only"):
        step.info["board"] = ()  # type: ignore[index]


class Turns:
    def reset(self, task, seed): ...
    def step(self, response): ...
    def close(self): ...


class Agent:
    def run(self, task, session): ...


class Both(Turns, Agent):
    """Takes turns: its ``run`` is a helper of its own."""


def test_an_environment_with_run_alone_is_an_agent() -> None:
    assert [is_agent(each) for each in (Turns, Agent, Agent(), Both)] == [False, True, True, False]
