"""Kinds whose objects come in two forms: environments that take turns, and agents."""

from __future__ import annotations

import pytest

from miles_core.errors import PluginError
from miles_core.plugins.hub import Hub
from miles_core.plugins.reference import PluginRef


def load(cls: type) -> object:
    return Hub.discover().load(PluginRef("environments", cls.__name__, f"{__name__}:{cls.__name__}", factory=cls))


class Made:
    def __init__(self, config, context): ...


def test_an_agent_needs_run_alone() -> None:
    class Agent(Made):
        async def run(self, task, session): ...

    assert load(Agent) is Agent


def test_a_class_of_neither_form_is_told_both() -> None:
    class Half(Made):
        def reset(self, task, seed): ...

    with pytest.raises(PluginError, match="lacks step, close; a environment has .* reset, step, close, or run"):
        load(Half)


def test_a_run_of_other_arguments_is_refused() -> None:
    class Agent(Made):
        def run(self, task): ...

    with pytest.raises(PluginError, match=r"run is called as run\(task, session\), but takes \(self, task\)"):
        load(Agent)


def test_a_class_that_takes_turns_may_have_a_run_of_its_own() -> None:
    class Turns(Made):
        def reset(self, task, seed): ...
        def step(self, response): ...
        def close(self): ...
        def run(self): ...

    assert load(Turns) is Turns
