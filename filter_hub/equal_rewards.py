"""Drops groups without a learning signal (dynamic sampling: DAPO, arXiv 2503.14476)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from miles_core.api import Verdict

if TYPE_CHECKING:
    from miles_core.api import Group, PluginContext


class EqualRewards:
    """Drops a group whose rewards are equal up to rounding: its group-relative advantages are all zero.

    Compares the extremes, since a standard deviation in floating point is rarely exactly 0.
    """

    stage: Literal["group"] = "group"

    def __init__(self, config: object, context: PluginContext) -> None:
        del config, context

    def keep(self, item: Group) -> Verdict:
        """Keep the group if its rewards differ."""
        rewards = item.rewards
        if not rewards or math.isclose(min(rewards), max(rewards), rel_tol=1e-6, abs_tol=1e-9):
            return Verdict(False, "equal_rewards")
        return Verdict(True)
