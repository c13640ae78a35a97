"""A look-up tool: a two-turn task whose second turn needs the first observation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from miles_core.api import Message, Observation, PluginError, Step

if TYPE_CHECKING:
    from miles_core.api import PluginContext, Task

CALL = re.compile(r"get (\w)$")


class Lookup:
    """The user asks for the value of a key; ``get KEY`` makes the tool tell it; the next turn is the answer.

    The value is the task's label: hidden from the policy until it asks. Anything but a call in the first turn ends
    the episode. The environment gives no reward: a reward model compares the answer with the label.
    """

    observation_roles = ("tool",)

    def __init__(self, config: object, context: PluginContext) -> None:
        del config, context
        self._value = ""
        self._asked = False

    async def reset(self, task: Task, seed: int) -> None:
        """The task's own message is the question."""
        del seed
        if task.label is None:
            raise PluginError(
                f"environment lookup: task {task.id} has no label to look up",
                remedy="Give each row of the data file a `label`.",
            )
        self._value = task.label
        self._asked = False

    async def step(self, response: Message) -> Step:
        """Answer a call with the value; anything else ends the episode."""
        call = CALL.fullmatch(response.text)
        if call is None or self._asked:
            return Step(done=True, info={"asked": self._asked})
        self._asked = True
        return Step(Observation(self._value, role="tool"), info={"key": call[1]})

    async def close(self) -> None:
        """Nothing is held."""
