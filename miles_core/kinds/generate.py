"""``[rollout] generate``: a function in place of the turns between policy and environment.

A plain function gets the episode and, as keyword arguments, the other keys of its table. A class is made once per run,
``cls(config, context)``, with its ``Config`` as every plugin's, and its object is called with the episode. Services of
the context: ``tokenizer``; ``config``, the resolved config as plain dictionaries; ``router_url``, where the run's
engines answer (empty where only the options are checked). An adapter makes such a class of a foreign function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from miles_core.types.frozen import frozen
from miles_core.types.sample import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.kinds.environments import Step
    from miles_core.kinds.sessions import Prompt, Turn
    from miles_core.types import Message, Sample, SamplingParams, Task


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """How an episode ended, where its status alone does not say enough.

    ``reward`` stands in place of the sum of the environment's; ``None`` keeps that. ``reason`` is a short snake_case
    word that metrics count endings by, ``error`` says why a failed or aborted one failed, ``info`` is kept with the
    trajectory as a deeply read-only copy. ``turn`` is the one whose conversation is trained; ``None`` leaves that to
    ``[session] pick``. ``samples`` and ``messages`` are for functions that generate by other means than the episode:
    what is given is trained in place of what the session recorded, and must be right to the token.
    """

    status: Status = Status.COMPLETED
    reward: float | None = None
    reason: str = ""
    error: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    turn: Turn | None = None
    samples: tuple[Sample, ...] | None = None
    messages: tuple[Message, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "info", frozen(self.info))


class EpisodeHandle(Protocol):
    """One trajectory to be generated; its session records every token, and its budgets and time-outs hold.

    Several turns may be generated at once; the budgets count all of them. One conversation is trained: that of the
    result's ``turn``, or else of the one that ``[session] pick`` chooses. Errors of the methods fail the trajectory and
    need not be caught; an aborted generation makes it an aborted one even where they are.
    """

    @property
    def id(self) -> str:
        """The trajectory's id."""

    @property
    def task(self) -> Task:
        """The task."""

    @property
    def seed(self) -> int:
        """The environment's seed, the same for all trajectories of the task's group."""

    @property
    def evaluation(self) -> bool:
        """Whether this is an evaluation; its samples are not trained."""

    @property
    def turns_left(self) -> int:
        """How many turns may still be generated, by ``rollout.max_turns``."""

    async def reset(self) -> list[Message]:
        """Begin the environment's episode, once; the task's messages and what the environment shows first."""

    def sampling(self, turn: int) -> SamplingParams:
        """How turn ``turn`` (from 0, counted over all turns of the trajectory) is sampled, with a seed of its own."""

    def prepare(self, messages: Sequence[Message]) -> Prompt:
        """Attach ``messages`` to the deepest stored turn that they continue and tokenize only what is new.

        Raises:
            SessionError: if the chat template cannot append them token by token.
        """

    def room(self, prompt: Prompt) -> int:
        """How many tokens the next turn may have after ``prompt``; 0 where a budget is used up, turns included.

        Turns in flight count with all the tokens that they may have.
        """

    async def generate(self, prompt: Prompt | Sequence[Message], sampling: SamplingParams | None = None) -> Turn:
        """Generate the turn after a prompt, or after messages, as :meth:`sampling` says of the next turn.

        ``max_new_tokens`` is cut to what the budgets leave.

        Raises:
            BudgetSpent: if nothing may be generated any more; uncaught it ends the episode as truncated.
            RolloutError: if the generation was aborted: the trajectory is.
        """

    async def step(self, turn: Turn) -> Step:
        """Act on a turn; its reward counts, and it is recorded with the turn.

        Raises:
            RolloutError: if the environment raises, hangs or returns something else than a Step, or was not reset.
        """

    async def message(self, observation: Any) -> Message:
        """The chat message that carries an observation of a step."""


class EpisodeFunction(Protocol):
    """Generates one episode.

    Plain functions run in a thread, where the methods of the episode block instead of being awaited. What is raised
    fails the trajectory: it is not trained, and nothing scores it.
    """

    def __call__(self, episode: EpisodeHandle) -> Any:
        """Generate to the end; returns (or a coroutine does) a :class:`Status` or an :class:`EpisodeResult`."""
