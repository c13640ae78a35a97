"""Which groups are worth training on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import Verdict

if TYPE_CHECKING:
    from miles_core.api import Group, PluginContext


class Difficulty:
    """Keeps a group whose mean reward is neither too low nor too high, and whose rewards differ."""

    class Config(BaseModel):
        """Options of ``[[filters]] use = "difficulty"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        low: float = Field(0.0, description="a group with a lower mean reward is too hard")
        high: float = Field(1.0, description="a group with a higher mean reward is too easy")

    stage: Literal["group"] = "group"

    def __init__(self, config: Config, context: PluginContext) -> None:
        del context
        self._config = config

    def keep(self, item: Group) -> Verdict:
        """Keep the group, or drop it as ``unscored``, ``no_spread``, ``too_hard`` or ``too_easy``."""
        rewards = item.rewards
        if not rewards:
            return Verdict(False, "unscored")
        if max(rewards) - min(rewards) < 1e-6:
            return Verdict(False, "no_spread")
        mean = sum(rewards) / len(rewards)
        if mean < self._config.low:
            return Verdict(False, "too_hard")
        if mean > self._config.high:
            return Verdict(False, "too_easy")
        return Verdict(True)
