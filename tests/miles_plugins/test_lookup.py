"""The look-up environment: the second turn needs the first observation."""

from __future__ import annotations

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_core.types import Message, Task
from miles_plugins.environments.lookup import Lookup

pytestmark = pytest.mark.anyio
TASK = Task("t", (Message("user", "value of c?"),), label="3")


@pytest.fixture
async def env() -> Lookup:
    environment = Lookup(None, PluginContext())
    await environment.reset(TASK, seed=0)
    return environment


async def test_a_call_shows_the_value_in_the_tools_role(env: Lookup) -> None:
    step = await env.step(Message("assistant", "get c"))
    assert step.observation is not None
    assert (step.observation.text, step.observation.role, step.done) == ("3", "tool", False)


@pytest.mark.parametrize("answer", ["3", "get", "get cc", "please get c", ""])
async def test_anything_but_a_call_ends_the_first_turn(env: Lookup, answer: str) -> None:
    step = await env.step(Message("assistant", answer))
    assert step.done
    assert step.info["asked"] is False


async def test_the_second_turn_ends_the_episode_whatever_it_says(env: Lookup) -> None:
    await env.step(Message("assistant", "get c"))
    step = await env.step(Message("assistant", "get c"))
    assert step.done
    assert step.info["asked"] is True


async def test_a_task_without_label_is_a_clear_error() -> None:
    with pytest.raises(PluginError, match="task u has no label"):
        await Lookup(None, PluginContext()).reset(Task("u", TASK.messages), seed=0)
