"""A reward with variance in every group, for runs whose speed is all that counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from miles_core.api import Reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.api import PluginContext, Trajectory


class Letters:
    """The share of letters in the answer."""

    scope: Literal["sample"] = "sample"

    def __init__(self, config: object, context: PluginContext) -> None:
        del config, context

    async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
        """One reward per trajectory."""
        texts = [item.response for item in items]
        return [Reward(sum(map(str.isalpha, text)) / max(1, len(text))) for text in texts]
