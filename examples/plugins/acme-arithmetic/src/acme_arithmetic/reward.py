"""How good an answer is: by its distance from the right one, and by the tries that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from acme_arithmetic.number import number
from miles_core.api import Reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.api import PluginContext, Trajectory


class Closeness:
    """``discount ** (tries - 1) / (1 + |answer - right|)`` for the last answer; 0 if it is no number."""

    class Config(BaseModel):
        """Options of ``[[rewards]] use = "closeness"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        discount: float = Field(0.8, gt=0, le=1, description="factor for each try after the first")

    scope: Literal["sample"] = "sample"

    def __init__(self, config: Config, context: PluginContext) -> None:
        del context
        self._discount = config.discount

    async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
        """One reward per trajectory; ``None`` where the task's label is no number."""
        return [self._one(item) for item in items]

    def _one(self, item: Trajectory) -> Reward:
        right = number(item.task.label or "")
        if right is None:
            return Reward(None, f"the label of task {item.task.id} is no number")
        answer = number(item.response)
        if answer is None:
            return Reward(0.0)
        return Reward(self._discount ** max(item.turns - 1, 0) / (1 + abs(answer - right)))
