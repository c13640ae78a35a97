"""Reward models: they score trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.types import Reward, Trajectory

Scope = Literal["sample", "group"]


@runtime_checkable
class RewardModel(Protocol):
    """Scores items: single trajectories (``scope = "sample"``) or the trajectories of one group at once.

    ``score`` gets a list of trajectories and returns one :class:`Reward` for each, in order. A reward that
    could not be computed is ``Reward(None, reason)``, never 0.0.
    """

    scope: Scope

    async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
        """One reward per item."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], RewardModel]:
    """A factory for a plain ``fn(trajectory) -> float | None``, sync or async.

    Sync functions run in a thread, so that a slow one never stalls generation.
    """
    from miles_core.types import Reward  # here, so that listing plugins does not import all data types

    class FunctionReward:
        scope: Scope = "sample"

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        async def score(self, items: Sequence[Trajectory]) -> list[Reward]:
            from miles_core.lib.calls import call

            rewards = []
            for item in items:
                value = await call(function, item)
                rewards.append(value if isinstance(value, Reward) else _reward(value))
            return rewards

    return FunctionReward


def _reward(value: Any) -> Reward:
    from miles_core.types import Reward

    return Reward(None, "the reward function returned None") if value is None else Reward(float(value))


KIND = Kind(
    plural="reward_models",
    singular="reward model",
    summary="scores trajectories",
    table="[[rewards]]",
    protocol=RewardModel,
    members=("scope", "score"),
    awaited={"score": True},
    choices={"scope": get_args(Scope)},
    adapt=adapt,
)
