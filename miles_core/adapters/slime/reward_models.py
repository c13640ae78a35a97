"""Reward functions of slime: ``custom_rm(args, sample)``, or ``(args, samples)`` for a group at once."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

from miles_core.adapters.slime.arguments import arguments
from miles_core.adapters.slime.call import check, names, number
from miles_core.adapters.slime.sample import sample_class
from miles_core.adapters.slime.to_slime import trajectory_sample, trajectory_samples
from miles_core.errors import RolloutError
from miles_core.lib.signatures import is_async
from miles_core.types import Reward

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.reward_models import RewardModel, Scope
    from miles_core.types import Trajectory

SIGNATURE = "custom_rm(args, sample), or custom_rm(args, samples) for a group"


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], RewardModel]:
    """A factory for a slime reward function, sync or async; it scores groups if its parameter is called ``samples``.

    Raises:
        PluginError: if it does not take ``args`` and a sample.
    """
    from pydantic import BaseModel, ConfigDict, Field

    check(function, SIGNATURE, "args", "sample")
    default: Scope = "group" if names(function)[1:2] == ["samples"] else "sample"

    class SlimeReward:
        class Config(BaseModel):
            model_config = ConfigDict(extra="allow")
            scope: Literal["sample", "group"] = Field(default, description="what one call gets; --group-rm is group")
            reward_key: str | None = Field(None, description="the entry that counts of a mapping that is returned")

        scope: Scope = default

        def __init__(self, config: Config, context: PluginContext) -> None:
            self.scope = config.scope
            options = {**config.model_dump(exclude={"scope"}), "group_rm": config.scope == "group"}
            self._key, self._args = config.reward_key, arguments(context, options)
            self._class = sample_class(function)

        async def _awaited(self, items: Sequence[Trajectory]) -> list[Reward]:
            return await self._called(items)

        def _called(self, items: Sequence[Trajectory]) -> Awaitable[list[Reward]]:
            if self.scope == "group":
                return self._rewards([function(self._args, trajectory_samples(items, self._class))], len(items))
            return self._rewards([function(self._args, trajectory_sample(i, self._class)) for i in items], len(items))

        # A plain function blocks a thread of the scorer, which bounds them.
        score: Any = _awaited if is_async(function) else _called

        async def _rewards(self, returned: Sequence[Any], count: int) -> list[Reward]:
            values = [await value if isawaitable(value) else value for value in returned]
            values = _one_each(values[0], count) if self.scope == "group" else values
            return [_reward(value, self._key) for value in values]

    return SlimeReward


def _reward(value: Any, key: str | None) -> Reward:
    reward = number(value, key)
    return Reward(None, "the reward function returned None") if reward is None else Reward(reward)


def _one_each(values: Any, count: int) -> list[Any]:
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(part, list) for part in values):
        raise RolloutError(
            "the function returned two lists, as a reward post-process does (--custom-reward-post-process-path)",
            remedy="Write an advantage estimator, which gets all rewards of a step; see docs/migrating.md.",
        )
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple) or len(values) != count:
        got = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise RolloutError(f"a reward function for groups must return one reward per sample, {count}; got {got}")
    return list(values)
