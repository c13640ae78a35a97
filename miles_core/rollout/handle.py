"""One trajectory as a function generates it: session and environment behind budgets, checks and time-outs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import BudgetSpent, EngineError, RolloutError
from miles_core.kinds.sessions import Prompt
from miles_core.rollout.clock import clock_of_task
from miles_core.types import MAIN_AGENT, TurnRecord
from miles_core.types.frozen import frozen
from miles_core.types.generation import GREEDY_BELOW

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from miles_core.kinds.environments import Step
    from miles_core.kinds.sessions import OnTokens, SamplingRequest, Session, Turn
    from miles_core.rollout.budget import Budget
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.types import Message, SamplingParams, Task


@dataclass(slots=True)
class RecordedTurn:
    """A turn of the session and its record."""

    turn: Turn
    record: TurnRecord


class Handle:
    """See :class:`miles_core.kinds.generate.EpisodeHandle`; ``rewards`` are those of the steps, in order.

    ``aborted`` says why a generation was aborted, ``spent`` which budget refused one, and ``refusal`` in what words.
    ``sessions`` are those of its agents, by name; ``agent_rewards`` are those of agents other than the main one.
    ``on_abort`` is called when a client's generation was aborted.
    """

    def __init__(
        self,
        task: Task,
        environment: EnvironmentRunner,
        session: Session,
        budget: Budget,
        sampling: Callable[[int], SamplingParams],
        *,
        trajectory_id: str,
        seed: int,
        evaluation: bool = False,
        open_session: Callable[[str], Session] | None = None,
    ) -> None:
        self.id, self.task, self.seed, self.evaluation = trajectory_id, frozen(task), seed, evaluation
        self.turns: list[RecordedTurn] = []
        self.rewards: list[float] = []
        self.aborted: str | None = None
        self.spent = self.refusal = ""
        self.sessions: dict[str, Session] = {MAIN_AGENT: session}
        self.agent_rewards: dict[str, float] = {}
        self.on_abort: Callable[[], None] = lambda: None
        self._environment = environment
        self._session = session
        self._open_session = open_session
        self._budget = budget
        self._sampling = sampling
        self._started = self._asked = 0
        self._tokens = 0
        self._acting: bool | None = None
        self._over = False
        self._counted = clock_of_task()

    @property
    def turns_left(self) -> int:
        """How many turns may still be generated."""
        return self._budget.max_turns - self._started

    async def reset(self) -> list[Message]:
        """Begin the environment's episode, once; the task's messages and what the environment shows first."""
        self._check_running()
        if self._acting is not None:
            raise RolloutError("reset() was called twice; an environment serves one episode")
        self._acting = True
        first = await self._environment.reset(self.task, self.seed)
        return [*self.task.messages, *([] if first is None else [first])]

    def sampling(self, turn: int) -> SamplingParams:
        """How the turn of that number is sampled."""
        return replace(self._sampling(turn), max_new_tokens=self._budget.max_new_tokens)

    def prepare(self, messages: Sequence[Message]) -> Prompt:
        """Tokenize what is new of a conversation."""
        self._check_running()
        return self._session.prepare(messages)

    def room(self, prompt: Prompt) -> int:
        """How many tokens a turn after the prompt may have; turns in flight count with all that they may have."""
        if self.turns_left <= 0:
            return 0
        return max(0, self._budget.new_tokens(context=len(prompt.input_ids), generated=self._tokens))

    async def generate(self, prompt: Prompt | Sequence[Message], sampling: SamplingParams | None = None) -> Turn:
        """Generate the turn after a prompt or after messages, within the budgets."""
        self._check_running()
        prompt = prompt if isinstance(prompt, Prompt) else self.prepare(prompt)
        room = self._room_or_end(prompt)
        wanted = _checked(sampling) if sampling is not None else self.sampling(self._asked)
        wanted = replace(wanted, max_new_tokens=min(room, wanted.max_new_tokens))
        turn = await self._generated(self._session.generate(prompt, wanted), prompt, wanted)
        if self.aborted is not None:
            raise RolloutError(f"the generation was aborted: {self.aborted or 'no reason given'}")
        return turn

    async def answer(
        self, session: Session, prompt: Prompt, asked: SamplingRequest, on_tokens: OnTokens | None = None
    ) -> Turn:
        """Generate for a client of one of the episode's sessions; see ``miles_core.session.served.Served``.

        The run's temperature and seed hold, whatever the client asks for, and its ``max_new_tokens`` is the most that a
        turn gets. What is aborted is not stored, and ends the episode.
        """
        self._check_running()
        self._check_not_aborted()
        room, own = self._room_or_end(prompt, first_fails=False), self.sampling(self._asked)
        most = min(room, own.max_new_tokens, asked.max_new_tokens or own.max_new_tokens)
        wanted = replace(own, max_new_tokens=most, stop=asked.stop, json_schema=asked.json_schema)
        generating = session.generate(prompt, wanted, on_tokens=on_tokens, keep_aborted=False)
        with self._counted():
            turn = await self._generated(generating, prompt, wanted)
        if self.aborted is not None:
            self.on_abort()
        self._check_not_aborted()
        return turn

    async def _generated(self, generating: Coroutine[Any, Any, Turn], prompt: Prompt, wanted: SamplingParams) -> Turn:
        """The turn that is being generated, recorded and counted; one that fails does not count."""
        self._started += 1
        self._asked += 1
        self._tokens += wanted.max_new_tokens
        started, count, turns = time.perf_counter(), 0, 0
        try:
            turn = await generating
            count, turns = len(turn.generation.output_ids), 1
        finally:
            self._tokens += count - wanted.max_new_tokens
            self._started += turns - 1
        self._record(prompt, turn, wanted, time.perf_counter() - started)
        if turn.generation.finish_reason.type == "abort":
            self.aborted = turn.generation.finish_reason.message or ""
        return turn

    def session(self, agent: str) -> Session:
        """The session of an agent, opened the first time."""
        self._check_running()
        if agent not in self.sessions:
            if self._open_session is None:
                raise RolloutError(f"the episode {self.id} has one session only; agent {agent!r} asks for another")
            self.sessions[agent] = self._open_session(agent)
        return self.sessions[agent]

    async def step(self, turn: Turn) -> Step:
        """Act on a turn."""
        self._check_running()
        recorded = next((entry for entry in self.turns if entry.turn is turn), None)
        if recorded is None:
            raise RolloutError(
                "step() acts on a turn of this episode; got another", remedy="Pass what generate() returned."
            )
        if not self._acting:
            state = "over" if self._acting is False else "not begun"
            raise RolloutError(
                f"step() was called, but the environment's episode is {state}",
                remedy="Call reset() first, and end after a step that is done or truncated.",
            )
        started = time.perf_counter()
        step = await self._environment.step(turn.message)
        seconds = time.perf_counter() - started
        recorded.record = replace(recorded.record, environment_seconds=seconds, reward=step.reward, info=step.info)
        self.rewards.append(step.reward)
        self._acting = not (step.done or step.truncated)
        return step

    async def message(self, observation: Any) -> Message:
        """The chat message that carries an observation."""
        self._check_running()
        return await self._environment.message(observation)

    def end(self) -> None:
        """Nothing may be done with the episode any more."""
        self._over = True

    def _check_running(self) -> None:
        if self._over:
            raise RolloutError(f"the episode {self.id} is over; the function goes on without being awaited")

    def _check_not_aborted(self) -> None:
        if self.aborted is not None:
            raise EngineError(
                f"the engine aborted a turn of the episode {self.id}: {self.aborted or 'no reason given'}"
            )

    def _room_or_end(self, prompt: Prompt, *, first_fails: bool = True) -> int:
        """The room after a prompt; where there is none, the episode ends, or fails if it has no turn yet."""
        if self.turns_left <= 0:
            raise self._spent("max_turns", f"rollout.max_turns = {self._budget.max_turns} turns are generated")
        room, context = self.room(prompt), len(prompt.input_ids)
        if room > 0:
            return room
        if self._started:
            raise self._spent("token_budget", f"the {context} tokens of the prompt leave no room for another turn")
        words = (
            f"the prompt of task {self.task.id} has {context} tokens; with rollout.max_context_tokens = "
            f"{self._budget.max_context_tokens} nothing can be generated"
        )
        if not first_fails:
            raise self._spent("token_budget", words)
        raise RolloutError(
            words, remedy="Raise rollout.max_context_tokens (up to the model's context less 6), or shorten the task."
        )

    @property
    def max_context_tokens(self) -> int:
        """All tokens that a conversation may have."""
        return self._budget.max_context_tokens

    def too_large(self, characters: int) -> BudgetSpent:
        """The budget that messages exceed which need not be tokenized to tell."""
        most = self._budget.max_context_tokens
        return self._spent(
            "token_budget", f"the messages have {characters} characters; rollout.max_context_tokens is {most}"
        )

    def _spent(self, budget: str, words: str) -> BudgetSpent:
        self.spent, self.refusal = budget, words
        return BudgetSpent(words)

    def _record(self, prompt: Prompt, turn: Turn, sampling: SamplingParams, seconds: float) -> None:
        start = len(prompt.input_ids)
        record = TurnRecord(
            start=start,
            end=start + len(turn.generation.output_ids),
            sampling=sampling,
            finish_reason=turn.generation.finish_reason.type,
            generate_seconds=seconds,
            cached_tokens=turn.generation.cached_tokens,
        )
        self.turns.append(RecordedTurn(turn, record))


def _checked(sampling: SamplingParams) -> SamplingParams:
    trained = math.isfinite(sampling.temperature) and sampling.temperature >= GREEDY_BELOW
    if not trained or sampling.max_new_tokens < 1:
        raise RolloutError(
            "a turn needs a temperature of at least 1e-6 and max_new_tokens of at least 1; got "
            f"{sampling.temperature!r} and {sampling.max_new_tokens!r}"
        )
    return sampling
