"""The rollout of one step: tasks become groups of trajectories, scored and filtered."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import RolloutError
from miles_core.rollout.episode import Episode
from miles_core.rollout.seeds import seed_of
from miles_core.types import Group, SamplingParams, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.kinds.data_sources import DataSource
    from miles_core.kinds.sessions import SessionFactory
    from miles_core.rollout.budget import Budget
    from miles_core.rollout.environment import EnvironmentRunner
    from miles_core.rollout.filtering import Drops, FilterChain
    from miles_core.rollout.scoring import Scorer
    from miles_core.types import Task


logger = logging.getLogger("miles.rollout")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How much one step generates; ``temperature`` is that of every turn."""

    groups_per_step: int
    group_size: int
    max_concurrency: int
    temperature: float
    seed: int


@dataclass(frozen=True, eq=False)
class StepRollout:
    """What one step generated: ``groups`` as they came, ``kept`` after filters, drops by reason.

    ``causes`` holds, for drops that are no verdict on the policy, what made the first of them.
    """

    step: int
    groups: tuple[Group, ...]
    kept: tuple[Group, ...]
    dropped: Counter[str] = field(default_factory=Counter)
    causes: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def rewards(self) -> list[float]:
        """Rewards of all scored trajectories, dropped groups included."""
        return [reward for group in self.groups for reward in group.rewards]

    @property
    def generated_tokens(self) -> int:
        """Tokens that the policy generated for trajectories that may be trained; what reductions divide by."""
        return sum(
            sample.trained_tokens
            for group in self.groups
            for trajectory in group.trajectories
            if trajectory.status.trainable
            for sample in trajectory.samples
        )


class RolloutScheduler:
    """Generates whole steps; trajectories run concurrently, results keep the order of the tasks."""

    def __init__(
        self,
        source: DataSource,
        environments: Mapping[str, Callable[[], EnvironmentRunner]],
        open_session: SessionFactory,
        scorer: Scorer,
        filters: FilterChain,
        budget: Budget,
        settings: RolloutSettings,
    ) -> None:
        self._source = source
        self._environments = environments
        self._open_session = open_session
        self._scorer = scorer
        self._filters = filters
        self._budget = budget
        self._settings = settings
        self._slots = anyio.Semaphore(settings.max_concurrency)

    async def step(self, step: int, on_trajectory: Callable[[Trajectory], None] = lambda _: None) -> StepRollout:
        """Generate, score and filter the groups of one step.

        Raises:
            RolloutError: if every trajectory failed, with the first cause.
        """
        started = time.perf_counter()
        taken = self._source.take(self._settings.groups_per_step)
        groups: list[Group | None] = [None] * len(taken)

        async def one(index: int, epoch: int, task: Task) -> None:
            groups[index] = await self._group(step, index, epoch, task, on_trajectory)

        async with anyio.create_task_group() as tasks:
            for index, (epoch, task) in enumerate(taken):
                tasks.start_soon(one, index, epoch, task)
        done = tuple(group for group in groups if group is not None)
        kept, drops = self._filters.apply(done)
        self._refuse_total_failure(done, drops)
        for reason, cause in drops.causes.items():
            logger.warning("step %d: %d %s; the first: %s", step + 1, drops.counts[reason], reason, cause)
        return StepRollout(step, done, tuple(kept), drops.counts, drops.causes, time.perf_counter() - started)

    async def _group(
        self, step: int, index: int, epoch: int, task: Task, on_trajectory: Callable[[Trajectory], None]
    ) -> Group:
        group_id = f"s{step}-g{index}"
        trajectories: list[Trajectory | None] = [None] * self._settings.group_size

        async def one(member: int) -> None:
            async with self._slots:
                trajectory = await self._episode(group_id, member, epoch, task)
            trajectories[member] = trajectory
            on_trajectory(trajectory)

        async with anyio.create_task_group() as tasks:
            for member in range(self._settings.group_size):
                tasks.start_soon(one, member)
        scored = await self._scorer.score([t for t in trajectories if t is not None])
        return Group(group_id, index, task, tuple(scored))

    async def _episode(self, group_id: str, member: int, epoch: int, task: Task) -> Trajectory:
        settings = self._settings
        trajectory_id = f"{group_id}-t{member}"

        def sampling(turn: int) -> SamplingParams:
            seed = seed_of(settings.seed, epoch, task.id, member, turn)
            return SamplingParams(temperature=settings.temperature, sampling_seed=seed)

        session = self._open_session(task_id=task.id, group_id=group_id, trajectory_id=trajectory_id)
        environment = self._environment(task)
        episode = Episode(task, environment, session, self._budget, sampling, trajectory_id=trajectory_id)
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

    def _refuse_total_failure(self, groups: tuple[Group, ...], drops: Drops) -> None:
        total = sum(len(group.trajectories) for group in groups)
        if sum(drops.counts[reason] for reason in drops.causes) == total:
            counted = ", ".join(f"{drops.counts[reason]} {reason}" for reason in drops.causes)
            cause = next(iter(drops.causes.values()))
            raise RolloutError(f"none of the step's {total} trajectories can be used ({counted}); the first: {cause}")
