"""One episode: generate, act, observe, until the environment or a budget ends it.

An observation that no turn follows is not part of the sample: nothing in it is trained.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from miles_core.errors import MilesError, RolloutError
from miles_core.rollout.clock import episode_clock
from miles_core.types import Status, Trajectory, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.sessions import Prompt, Session, Turn
    from miles_core.rollout.budget import Budget
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.types import Message, SamplingParams, Task


@dataclass(slots=True)
class _State:
    """What an episode has so far; a failure keeps it."""

    messages: list[Message]
    turns: list[TurnRecord] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    context: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    status: Status
    reason: str
    error: str | None = None


class Episode:
    """Runs one trajectory of a task in its environment, through its session."""

    def __init__(
        self,
        task: Task,
        make_environment: Callable[[], EnvironmentRunner],
        session: Session,
        budget: Budget,
        sampling: Callable[[int], SamplingParams],
        *,
        trajectory_id: str,
    ) -> None:
        self._task = task
        self._make_environment = make_environment
        self._session = session
        self._budget = budget
        self._sampling = sampling
        self._id = trajectory_id
        self._state = _State(list(task.messages))

    async def run(self, seed: int) -> Trajectory:
        """Run to the end; a failure is recorded on the trajectory and never becomes a reward."""
        end = _End(Status.FAILED, "episode_timeout", f"took longer than {self._budget.episode_timeout:g} s")
        try:
            with episode_clock(self._budget.episode_timeout):
                end = await self._play(seed)
        except MilesError as error:
            end = _End(Status.FAILED, type(error).__name__, str(error))
        return self._trajectory(end)

    async def _play(self, seed: int) -> _End:
        if self._task.images or self._task.tools:
            raise RolloutError(
                f"task {self._task.id} brings images or tools, which this version does not pass to the model",
                remedy="Describe tools in the task's messages, and leave images out.",
            )
        self._environment = self._make_environment()
        try:
            return await self._run(seed)
        finally:
            await self._environment.close()

    async def _run(self, seed: int) -> _End:
        first = await self._environment.reset(self._task, seed)
        if first is not None:
            self._state.messages.append(first)
        while True:
            prompt = self._session.prepare(self._state.messages)
            self._state.context = len(prompt.input_ids)
            end = await self._turn(prompt)
            if end is not None:
                return end

    async def _turn(self, prompt: Prompt) -> _End | None:
        """One generation and the environment's answer; ``None`` while the episode goes on."""
        state = self._state
        room = self._budget.new_tokens(context=state.context, generated=state.generated)
        if room <= 0 and not state.turns:
            raise RolloutError(
                f"the prompt of task {self._task.id} has {state.context} tokens; with rollout.max_context_tokens = "
                f"{self._budget.max_context_tokens} nothing can be generated",
                remedy="Raise rollout.max_context_tokens (up to the model's context less 6), or shorten the task.",
            )
        if room <= 0:  # the observation does not fit: the episode ends before it
            state.messages.pop()
            return _End(Status.TRUNCATED, "token_budget")
        sampling = replace(self._sampling(len(state.turns)), max_new_tokens=room)
        started = time.perf_counter()
        turn = await self._session.generate(prompt, sampling)
        self._record(turn, sampling, time.perf_counter() - started)
        if turn.generation.finish_reason.type == "abort":
            return _End(Status.ABORTED, "abort", turn.generation.finish_reason.message)
        return await self._act(turn.message)

    def _record(self, turn: Turn, sampling: SamplingParams, seconds: float) -> None:
        state = self._state
        count = len(turn.generation.output_ids)
        state.turns.append(
            TurnRecord(
                start=state.context,
                end=state.context + count,
                sampling=sampling,
                finish_reason=turn.generation.finish_reason.type,
                generate_seconds=seconds,
                cached_tokens=turn.generation.cached_tokens,
            )
        )
        state.context += count
        state.generated += count
        state.messages.append(turn.message)

    async def _act(self, response: Message) -> _End | None:
        state = self._state
        started = time.perf_counter()
        step = await self._environment.step(response)
        seconds = time.perf_counter() - started
        state.turns[-1] = replace(state.turns[-1], environment_seconds=seconds, reward=step.reward, info=step.info)
        state.rewards.append(step.reward)
        if step.done:
            return _End(Status.COMPLETED, "done")
        if step.truncated:
            return _End(Status.TRUNCATED, "environment")
        if len(state.turns) >= self._budget.max_turns:
            return _End(Status.TRUNCATED, "max_turns")
        if step.observation is not None:
            state.messages.append(await self._environment.message(step.observation))
        return None

    def _trajectory(self, end: _End) -> Trajectory:
        state = self._state
        samples = (self._session.sample(status=end.status, turns=state.turns),) if state.turns else ()
        return Trajectory(
            id=self._id,
            task=self._task,
            messages=tuple(state.messages),
            samples=samples,
            status=end.status,
            step_rewards=tuple(state.rewards),
            stop_reason=end.reason,
            error=end.error,
        )
