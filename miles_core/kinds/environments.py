"""Environments: what the policy acts in, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types import Message, Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows the policy after its turn.

    ``text`` may be any JSON value: other than text it is shown as JSON. ``role`` is the role of the message
    that carries it. ``multi_modal_data`` maps ``image`` to paths, URLs or data URIs.
    """

    text: Any
    role: str = "user"
    multi_modal_data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One environment step; ``truncated`` ends the episode without calling it completed.

    ``info`` is kept with the trajectory; it becomes a deeply read-only copy, its lists tuples.
    """

    observation: Observation | str | None = None
    done: bool = False
    reward: float = 0.0
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from miles_core.types.frozen import frozen  # here, so that listing plugins does not import all data types

        object.__setattr__(self, "info", frozen(self.info))


@runtime_checkable
class Environment(Protocol):
    """A turn-based environment: one object per episode, made by ``cls(config, context)``.

    ``reset`` and ``step`` may be coroutines or plain functions; plain ones run in a thread. An optional
    ``format_observation(observation) -> Message`` replaces the default message, and an optional class attribute
    ``observation_roles`` (default ``("user",)``) declares in which roles the environment answers, so that a chat
    template that cannot append them is refused at start-up. ``close`` is called exactly once. ``seed`` is the same
    for all trajectories of a group.
    """

    def reset(self, task: Task, seed: int) -> Any:
        """Begin an episode; an ``Observation`` is appended to the task's messages, ``None`` adds nothing."""

    def step(self, response: Message) -> Any:
        """Act on the policy's turn and return a :class:`Step`."""

    def close(self) -> Any:
        """Release what the episode holds."""


KIND = Kind(
    plural="environments",
    singular="environment",
    summary="what the policy acts in, turn by turn",
    table="[[environments]]",
    protocol=Environment,
    members=("reset", "step", "close"),
)
