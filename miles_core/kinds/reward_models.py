"""Reward models: they score trajectories."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext
from miles_core.lib.signatures import accepted, is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.types import Reward, Trajectory

Scope = Literal["sample", "group"]

OFFERS = ("group", "task")
"""Keywords that ``score``, or a plain function, gets if it takes them."""


@runtime_checkable
class RewardModel(Protocol):
    """Scores items: single trajectories (``scope = "sample"``) or the trajectories of one group at once.

    A reward that could not be computed is ``Reward(None, reason)``, never 0.0. What it gets is read-only. A ``score``
    that takes a keyword ``group`` gets all trajectories of the group that are scored, one that takes ``task`` their
    task; a plain function likewise.
    """

    scope: Scope

    def score(self, items: Sequence[Trajectory]) -> Any:
        """A list with one :class:`Reward` per item, in order; ``def`` runs in a thread, ``async def`` is awaited."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], RewardModel]:
    """A factory for a plain ``fn(trajectory) -> float | Reward | None``, sync or async."""
    taken = accepted(function, 1, OFFERS)

    class FunctionReward:
        scope: Scope = "sample"

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        def score(self, items: Sequence[Trajectory], **offered: Any) -> Any:
            values = [function(item, **{name: offered.get(name) for name in taken}) for item in items]
            return _awaited(values) if any(map(isawaitable, values)) else [_reward(value) for value in values]

    class AsyncFunctionReward(FunctionReward):
        async def score(self, items: Sequence[Trajectory], **offered: Any) -> list[Reward]:
            values = [await function(item, **{name: offered.get(name) for name in taken}) for item in items]
            return [_reward(value) for value in values]

    return AsyncFunctionReward if is_async(function) else FunctionReward


async def _awaited(values: Sequence[Any]) -> list[Reward]:
    return [_reward(await value if isawaitable(value) else value) for value in values]


def _reward(value: Any) -> Reward:
    from miles_core.types import Reward  # here, so that listing plugins does not import all data types

    if isinstance(value, Reward):
        return value
    return Reward(None, "the reward function returned None") if value is None else Reward(float(value))


KIND = Kind(
    plural="reward_models",
    singular="reward model",
    summary="scores trajectories",
    table="[[rewards]]",
    protocol=RewardModel,
    members=("scope", "score"),
    choices={"scope": get_args(Scope)},
    adapt=adapt,
    function=("trajectory",),
    offers=OFFERS,
)
