"""Episodes of agents: environments that hold the conversation themselves, over the session server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from miles_core.errors import BudgetSpent, MilesError, RolloutError, leaves_of
from miles_core.kinds.generate import EpisodeResult
from miles_core.lib.error_text import error_text, place_of, value_text
from miles_core.lib.numbers import is_finite
from miles_core.rollout.agent_session import AgentSessions
from miles_core.rollout.generating import checked_result
from miles_core.types import MAIN_AGENT, Status

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from miles_core.rollout.agent_session import EpisodeSession
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.rollout.handle import Handle


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach a session."""

    base_url: str
    api_key: str


class Endpoints(Protocol):
    """The session server of a run."""

    def serving(self, session: EpisodeSession) -> AbstractContextManager[Endpoint]:
        """Serve a session until the block is left: requests in flight are cancelled then, later ones refused."""


@dataclass(frozen=True, slots=True)
class AgentPlayer:
    """Runs agents in place of the turns; ``scored`` says whether ``[[rewards]]`` score what they do."""

    endpoints: Endpoints
    scored: bool

    async def play(self, environment: EnvironmentRunner, handle: Handle) -> EpisodeResult:
        """Run one episode's agent to its end; what a budget or an abort ended is a result, too.

        Where a budget refused a turn, the episode is truncated, whatever the agent made of that; only an
        :class:`EpisodeResult` says otherwise.

        Raises:
            MilesError: what failed the episode.
        """
        result = EpisodeResult(Status.ABORTED)
        try:
            with anyio.CancelScope() as scope, ExitStack() as served:
                handle.on_abort = scope.cancel
                sessions = AgentSessions(handle, self.endpoints, served)
                result = self._result(
                    await environment.run(handle.task, sessions.session(MAIN_AGENT)), environment, handle
                )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an agent raises fails its trajectory only
            result = _ended(error, environment, handle)
        finally:
            handle.end()
        return result if handle.aborted is None else EpisodeResult(Status.ABORTED, error=handle.aborted or None)

    def _result(self, value: Any, environment: EnvironmentRunner, handle: Handle) -> EpisodeResult:
        """The result that what an agent returned stands for."""
        who = f"{environment.title}: run()"
        if isinstance(value, EpisodeResult | Status):
            result = checked_result(value, who)
        else:
            rewards = _rewards(value, who, handle)
            status = Status.TRUNCATED if handle.spent else Status.COMPLETED
            result = EpisodeResult(status, rewards.pop(MAIN_AGENT, None), handle.spent)
            handle.agent_rewards.update(rewards)
        if result.reward is None and result.status is Status.COMPLETED and not self.scored:
            raise RolloutError(
                f"{who} returned no reward, and the config has no [[rewards]]",
                remedy="Return a number, or configure [[rewards]].",
            )
        return result


def _rewards(value: Any, who: str, handle: Handle) -> dict[str, float]:
    """Rewards by agent: of the main one where a number was returned, of those that are named in a mapping."""
    rewards = value if isinstance(value, Mapping) else {} if value is None else {MAIN_AGENT: value}
    for name, reward in rewards.items():
        if name not in handle.sessions:
            opened = ", ".join(handle.sessions)
            raise RolloutError(
                f"{who} gave a reward to agent {name!r}; agents of the episode: {opened}",
                remedy="Name agents as in session.agent(name); the main one is policy.",
            )
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not is_finite(reward):
            raise RolloutError(
                f"{who} must return None, a finite number, an EpisodeResult or numbers by agent; "
                f"got {value_text(value)}",
                remedy="Write float(...) around what is not a number yet.",
            )
    return {name: float(reward) for name, reward in rewards.items()}


def _ended(error: BaseException, environment: EnvironmentRunner, handle: Handle) -> EpisodeResult:
    leaf = next((leaf for leaf in leaves_of(error) if not isinstance(leaf, BudgetSpent)), error)
    if handle.spent or handle.aborted is not None:
        return EpisodeResult(Status.TRUNCATED, reason=handle.spent)
    if isinstance(leaf, MilesError):
        raise leaf
    place = place_of(leaf)
    raise RolloutError(f"{environment.title}: run() raised {error_text(leaf)}{place and f' ({place})'}") from error
