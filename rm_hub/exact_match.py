"""Exact match of the last answer with the task's label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import Reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.api import PluginContext, Trajectory


class ExactMatchConfig(BaseModel):
    """Options of ``[[rewards]] use = "exact_match"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ignore_case: bool = Field(False, description="compare without regard to case")
    min_turns: int = Field(1, ge=1, description="an answer given in an earlier turn scores 0")


class ExactMatch:
    """1 if the last assistant message, stripped, is the task's label, else 0; ``None`` without a label."""

    Config = ExactMatchConfig
    scope: Literal["sample"] = "sample"

    def __init__(self, config: ExactMatchConfig, context: PluginContext) -> None:
        del context
        self._config = config

    async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
        """One reward per trajectory."""
        return [self._one(item) for item in items]

    def _one(self, item: Trajectory) -> Reward:
        if item.task.label is None:
            return Reward(None, f"task {item.task.id} has no label")
        answer, label = item.response.strip(), item.task.label.strip()
        if self._config.ignore_case:
            answer, label = answer.casefold(), label.casefold()
        return Reward(float(answer == label and item.turns >= self._config.min_turns))
