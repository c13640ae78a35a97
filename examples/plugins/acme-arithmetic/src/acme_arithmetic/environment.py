"""Sums with several tries: a wrong answer is told to be too low or too high."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from acme_arithmetic.number import number
from miles_core.api import Observation, PluginError, Step

if TYPE_CHECKING:
    from miles_core.api import Message, PluginContext, Task


class Arithmetic:
    """The user asks for a sum; each answer is right, or the environment says ``more`` or ``less``.

    The task's label is the right answer. An episode ends with the right answer, with the last try, or with a turn that
    is no number. The environment gives no reward: ``closeness`` does.
    """

    class Config(BaseModel):
        """Options of ``[[environments]] use = "arithmetic"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        tries: int = Field(2, ge=1, description="answers that the policy may give")

    def __init__(self, config: Config, context: PluginContext) -> None:
        del context
        self._tries = config.tries
        self._answers = 0
        self._right = 0

    def reset(self, task: Task, seed: int) -> None:
        """The task's own message is the question.

        Raises:
            PluginError: if the task's label is no number.
        """
        del seed  # nothing here is drawn
        right = number(task.label or "")
        if right is None:
            raise PluginError(
                f"environment arithmetic: the label of task {task.id} is {task.label!r}, which is no number",
                remedy="Give each row of the data file the right answer as its `label`.",
            )
        self._right, self._answers = right, 0

    def step(self, response: Message) -> Step:
        """Say ``more`` or ``less`` to a wrong answer, as long as there are tries left."""
        answer = number(response.text)
        self._answers += 1
        info = {"answer": answer, "tries": self._answers}
        if answer is None or answer == self._right or self._answers >= self._tries:
            return Step(done=True, info=info)
        return Step(Observation("more" if answer < self._right else "less"), info=info)

    def close(self) -> None:
        """Nothing is held."""
