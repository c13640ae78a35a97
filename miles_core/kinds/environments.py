"""Environments: what the policy acts in, turn by turn or as an agent of any framework."""

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


class AgentSession(Protocol):
    """One agent's conversations on the policy, as clients reach them: any OpenAI or Anthropic SDK with URL and key.

    Several requests may run at once; all count against the budgets of the episode.
    """

    @property
    def base_url(self) -> str:
        """The OpenAI API of this session; Anthropic's SDK takes it without its ``/v1``."""

    @property
    def api_key(self) -> str:
        """The key that names this session; it ends with the episode."""

    @property
    def id(self) -> str:
        """The id of the trajectory, the same for all agents of the episode."""

    @property
    def seed(self) -> int:
        """The same for all trajectories of a group."""

    @property
    def evaluation(self) -> bool:
        """Whether this is an evaluation; its samples are not trained."""

    def agent(self, name: str) -> AgentSession:
        """The session of another agent of the episode, always the same for a name; ``policy`` is the main one.

        Raises:
            RolloutError: if the name is no text, or the episode is over.
        """


@runtime_checkable
class AgentEnvironment(Protocol):
    """An environment that is an agent: it holds the conversation itself, with any client of the session server.

    One object per episode, made by ``cls(config, context)``, like an :class:`Environment`, but with ``run`` in place of
    ``reset`` and ``step``; ``close``, which may be left out, is called exactly once. A class that can take turns does.
    """

    def run(self, task: Task, session: AgentSession) -> Any:
        """Act to the end; a coroutine or a plain function, which runs in a thread.

        Returns its reward, ``None`` where ``[[rewards]]`` score it, an ``EpisodeResult``, or the reward of each agent
        by name. What is raised fails the trajectory, unless a budget was spent, which truncates it.
        """


def is_agent(environment: object) -> bool:
    """Whether a class, or an object, has ``run`` and cannot take turns."""
    turns = hasattr(environment, "reset") and hasattr(environment, "step")
    return hasattr(environment, "run") and not turns


KIND = Kind(
    plural="environments",
    singular="environment",
    summary="what the policy acts in, turn by turn or as an agent",
    table="[[environments]]",
    protocol=Environment,
    members=("reset", "step", "close"),
    other_protocol=AgentEnvironment,
    other_members=("run",),
)
