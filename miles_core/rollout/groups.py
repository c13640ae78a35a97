"""Groups: the trajectories of one task, generated side by side and scored together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import RolloutError
from miles_core.rollout.episode import Episode
from miles_core.rollout.generating import TURNS, Generator
from miles_core.rollout.seeds import seed_of
from miles_core.rollout.tasks import Pending
from miles_core.types import MAIN_AGENT, Group, SamplingParams, Status, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.kinds.sessions import Session, SessionFactory
    from miles_core.rollout.budget import Budget
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.rollout.scoring import Scorer
    from miles_core.types import Task


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """``group_size`` trajectories per task, at most ``max_concurrency`` of all groups at once."""

    group_size: int
    max_concurrency: int
    temperature: float
    seed: int


@dataclass(slots=True, eq=False)
class GroupWork:
    """A group that is being generated; ``done`` fills up and survives when the work is cancelled."""

    id: str
    index: int
    pending: Pending
    done: dict[int, Trajectory] = field(default_factory=dict)
    group: Group | None = None

    def __post_init__(self) -> None:
        self.done.update(self.pending.done)

    def unfinished(self) -> Pending:
        """What is left to do, with what is there already."""
        return Pending(self.pending.epoch, self.pending.task, self.pending.tries, dict(self.done))

    def retry(self) -> Pending:
        """The same task with one more try for its aborted trajectories."""
        done = {member: t for member, t in self.done.items() if t.status is not Status.ABORTED}
        return Pending(self.pending.epoch, self.pending.task, self.pending.tries + 1, done)


class GroupRunner:
    """Runs the episodes of groups and scores them."""

    def __init__(
        self,
        environments: Mapping[str, Callable[[], EnvironmentRunner]],
        open_session: SessionFactory,
        scorer: Scorer,
        budget: Budget,
        settings: GroupSettings,
        generator: Generator = TURNS,
    ) -> None:
        self._environments = environments
        self._open_session = open_session
        self._scorer = scorer
        self._budget = budget
        self._settings = settings
        self._generator = generator
        self._slots = anyio.Semaphore(settings.max_concurrency)

    async def run(self, work: GroupWork) -> None:
        """Generate what is missing of a group, score it and set ``work.group``."""

        async def one(member: int) -> None:
            async with self._slots:
                work.done[member] = await self._episode(work, member)

        async with anyio.create_task_group() as tasks:
            for member in range(self._settings.group_size):
                if member not in work.done:
                    tasks.start_soon(one, member)
        trajectories = [work.done[member] for member in sorted(work.done)]
        scored = await self._scorer.score(trajectories)
        work.group = Group(work.id, work.index, work.pending.task, tuple(scored))

    async def _episode(self, work: GroupWork, member: int) -> Trajectory:
        settings, task, epoch = self._settings, work.pending.task, work.pending.epoch
        trajectory_id = f"{work.id}-t{member}"

        def sampling(turn: int) -> SamplingParams:
            seed = seed_of(settings.seed, epoch, task.id, member, turn)
            return SamplingParams(temperature=settings.temperature, sampling_seed=seed)

        def open_session(agent: str) -> Session:
            names = {"task_id": task.id, "group_id": work.id, "trajectory_id": trajectory_id}
            return self._open_session(**names, agent_id=agent)

        episode = Episode(
            task,
            self._environment(task),
            open_session(MAIN_AGENT),
            self._budget,
            sampling,
            trajectory_id,
            work.id,
            self._generator,
            open_session,
        )
        return await episode.run(seed_of(settings.seed, epoch, task.id))

    def _environment(self, task: Task) -> Callable[[], EnvironmentRunner]:
        name = task.environment or next(iter(self._environments))
        if name not in self._environments:
            known = ", ".join(self._environments)
            raise RolloutError(
                f"task {task.id} asks for environment {name!r}; configured: {known}",
                remedy="Name it in [[environments]], or correct the task's `environment`.",
            )
        return self._environments[name]
