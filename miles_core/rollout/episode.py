"""One episode: its environment, its session, its time, and the trajectory that comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.errors import MilesError, RolloutError
from miles_core.kinds.generate import EpisodeResult
from miles_core.rollout.clock import episode_clock
from miles_core.rollout.generating import TURNS, Generator
from miles_core.rollout.handle import Handle
from miles_core.rollout.own_samples import checked_sample
from miles_core.types import MAIN_AGENT, Status, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.sessions import Session
    from miles_core.rollout.budget import Budget
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.types import Message, Sample, SamplingParams, Task

_REASONS = {Status.COMPLETED: "done", Status.TRUNCATED: "function", Status.ABORTED: "abort"}


@dataclass(frozen=True, eq=False)
class Episode:
    """Runs one trajectory of a task in its environment, through its session.

    ``open_session`` opens the sessions of agents other than the main one, by name.
    """

    task: Task
    make_environment: Callable[[], EnvironmentRunner]
    session: Session
    budget: Budget
    sampling: Callable[[int], SamplingParams]
    trajectory_id: str
    group_id: str = ""
    generator: Generator = TURNS
    open_session: Callable[[str], Session] | None = None

    async def run(self, seed: int) -> Trajectory:
        """Run to the end; a failure is recorded on the trajectory and never becomes a reward."""
        seconds, who = self.budget.episode_timeout, f"rollout.generate {self.generator.name}"
        result = EpisodeResult(Status.FAILED)
        handle: Handle | None = None
        try:
            with episode_clock(seconds):
                environment = self.make_environment()
                who = who if environment.player is None else environment.title
                late = f"{who}: longer than {seconds:g} s (rollout.episode_timeout)"
                result = EpisodeResult(Status.FAILED, reason="episode_timeout", error=late)
                handle = self._handle(environment, seed)
                try:
                    result = await self._play(environment, handle)
                finally:
                    await environment.close()
        except MilesError as error:
            result = _failed(error)
        return self._trajectory(result, handle, who)

    async def _play(self, environment: EnvironmentRunner, handle: Handle) -> EpisodeResult:
        if environment.player is None:
            return await self.generator.run(handle)
        return await environment.player.play(environment, handle)

    def _handle(self, environment: EnvironmentRunner, seed: int) -> Handle:
        return Handle(
            self.task,
            environment,
            self.session,
            self.budget,
            self.sampling,
            trajectory_id=self.trajectory_id,
            seed=seed,
            evaluation=self.generator.evaluation,
            open_session=self.open_session,
        )

    def _trajectory(self, result: EpisodeResult, handle: Handle | None, who: str) -> Trajectory:
        messages: tuple[Message, ...] = self.task.messages
        samples: tuple[Sample, ...] = ()
        try:
            messages, samples = self._trained(result, handle)
            if result.status.trainable and not samples:
                why = f": {handle.refusal}" if handle is not None and handle.refusal else ""
                raise RolloutError(f"{who} ended without a generated turn{why}")
        except MilesError as error:
            result = _failed(error)
        rewards = handle.rewards if handle is not None else []
        return Trajectory(
            id=self.trajectory_id,
            task=self.task,
            messages=messages,
            samples=samples,
            status=result.status,
            step_rewards=tuple(rewards) if result.reward is None else (float(result.reward),),
            stop_reason=result.reason or _REASONS.get(result.status, str(result.status)),
            error=result.error,
            info=result.info,
            agent_rewards=handle.agent_rewards if handle is not None else {},
        )

    def _trained(self, result: EpisodeResult, handle: Handle | None) -> tuple[tuple[Message, ...], tuple[Sample, ...]]:
        """The messages of the trajectory, and its samples: those of the result, or else the session's."""
        if result.samples is not None:
            samples = tuple(self._own(sample, result.status) for sample in result.samples)
            return result.messages or self.task.messages, samples
        if handle is None or not handle.turns:
            return result.messages or self.task.messages, ()
        records = {entry.turn.stored: entry.record for entry in handle.turns}
        made: list[Sample] = []
        for name, session in handle.sessions.items():
            turn = result.turn if name == MAIN_AGENT else None
            made += session.samples(status=result.status, records=records, turn=turn)
        conversations = self.session.conversations(result.turn)
        messages = conversations[-1].messages if conversations else self.task.messages
        return result.messages or messages, tuple(made)

    def _own(self, sample: Sample, status: Status) -> Sample:
        return checked_sample(
            sample,
            status,
            self.budget,
            group_id=self.group_id,
            trajectory_id=self.trajectory_id,
            needs_routing=self.generator.needs_routing,
        )


def _failed(error: MilesError) -> EpisodeResult:
    return EpisodeResult(Status.FAILED, reason=type(error).__name__, error=str(error))
