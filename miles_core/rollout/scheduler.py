"""The rollout of one step: tasks become groups of trajectories, scored and filtered, until the step is full."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import anyio

from miles_core.errors import RolloutError
from miles_core.rollout.filtering import Drops
from miles_core.rollout.groups import GroupWork
from miles_core.rollout.step import StepRollout
from miles_core.rollout.tasks import Pending
from miles_core.types import Group, Status
from miles_core.types.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.rollout.filtering import FilterChain
    from miles_core.rollout.groups import GroupRunner
    from miles_core.rollout.tasks import TaskStream

logger = logging.getLogger("miles.rollout")


@dataclass(frozen=True, slots=True)
class FillSettings:
    """When a step is full.

    ``fill = "generated"``: after ``groups_per_step`` groups. ``fill = "kept"`` (dynamic sampling, DAPO): when filters
    have kept that many, or ``max_groups`` were generated; ``over_sampling`` groups are begun at once for each that is
    missing. Groups that are not needed any more are waited for and left over for the next step (``"wait"``: the batch
    does not depend on who finishes first), or stopped and continued later (``"requeue"``).
    """

    groups_per_step: int
    fill: Literal["generated", "kept"] = "generated"
    over_sampling: float = 1.0
    max_groups: int = 0
    stragglers: Literal["wait", "requeue"] = "wait"
    max_tries: int = 3


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    number: int
    first_index: int = 0
    taken: int = 0
    requeued: int = 0
    tries: int = 0
    groups: list[Group] = field(default_factory=list)
    kept: list[Group] = field(default_factory=list)
    drops: Drops = field(default_factory=Drops)


class RolloutScheduler:
    """Generates whole steps.

    It remembers what belongs to later steps: groups that are left over, and tasks whose trajectories were aborted or
    stopped. :meth:`state` holds these and what is in flight, so that a resumed run loses no task and trains none twice.
    """

    def __init__(self, tasks: TaskStream, runner: GroupRunner, filters: FilterChain, settings: FillSettings) -> None:
        self._tasks = tasks
        self._runner = runner
        self._filters = filters
        self._settings = settings
        self._pending: list[Pending] = []
        self._left_over: list[Group] = []
        self._in_flight: list[GroupWork] = []
        self._step = _Step(-1)

    async def step(self, step: int) -> StepRollout | None:
        """Generate, score and filter the groups of one step; ``None`` where the data has ended.

        Raises:
            RolloutError: if no trajectory of the step can be used, with the first cause.
            DataError: if a row of the data is malformed.
        """
        current = self._step = _begin(step, self._left_over)
        self._left_over = []
        ended = False
        while not ended and (count := self._wanted(current)):
            work = self._take(count, current)
            ended = len(work) < count
            await self._wave(work, current)
        if ended and not current.taken and not current.groups:
            return None
        return self._finish(current)

    def state(self) -> dict[str, Any]:
        """Everything that later steps need, as a plain record for a checkpoint."""
        unfinished = [work.unfinished() for work in self._in_flight]
        kept = self._step.kept if self._in_flight else []
        return {
            "tasks": self._tasks.state(),
            "pending": [pending.to_record() for pending in [*unfinished, *self._pending]],
            "left_over": [to_record(group) for group in [*kept, *self._left_over]],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state.

        Raises:
            DataError: if the position belongs to other data.
        """
        self._tasks.restore(state["tasks"])
        self._pending = [Pending.from_record(record) for record in state["pending"]]
        self._left_over = [from_record(record, Group) for record in state["left_over"]]

    def _wanted(self, current: _Step) -> int:
        settings = self._settings
        if settings.fill == "generated":
            return 0 if current.taken else max(0, settings.groups_per_step - len(current.groups))
        missing = max(0, settings.groups_per_step - len(current.kept))
        return min(math.ceil(missing * settings.over_sampling), settings.max_groups - current.taken)

    def _take(self, count: int, current: _Step) -> list[GroupWork]:
        """Tasks that wait from earlier steps come first."""
        pending, self._pending = self._pending[:count], self._pending[count:]
        pending += self._tasks.take(count - len(pending))
        first = current.first_index + current.taken
        current.taken += len(pending)
        return [GroupWork(f"s{current.number}-g{first + i}", first + i, task) for i, task in enumerate(pending)]

    async def _wave(self, work: Sequence[GroupWork], current: _Step) -> None:
        self._in_flight = list(work)
        stop_early = self._settings.fill == "kept" and self._settings.stragglers == "requeue"
        async with anyio.create_task_group() as tasks:

            async def one(item: GroupWork) -> None:
                await self._runner.run(item)
                if stop_early:
                    self._settle(item, current)
                    if len(current.kept) >= self._settings.groups_per_step:
                        tasks.cancel_scope.cancel()

            for item in work:
                tasks.start_soon(one, item)
        for item in work:
            if item in self._in_flight:  # in order, whoever was first
                self._settle(item, current)

    def _settle(self, work: GroupWork, current: _Step) -> None:
        """A group that is done is filtered; one with aborted trajectories, or that was stopped, is continued later."""
        self._in_flight.remove(work)
        current.tries = max(current.tries, work.pending.tries + 1)
        if work.group is None:
            self._pending.append(work.unfinished())
            current.requeued += 1
            return
        aborted = any(trajectory.status is Status.ABORTED for trajectory in work.group.trajectories)
        if aborted and work.pending.tries + 1 < self._settings.max_tries:
            self._pending.append(work.retry())
            current.requeued += 1
            return
        if aborted:
            task, tries = work.pending.task.id, self._settings.max_tries
            logger.warning("task %s: trajectories were aborted %d times and are given up", task, tries)
        current.groups.append(work.group)
        current.kept += self._filters.apply([work.group], current.drops)

    def _finish(self, current: _Step) -> StepRollout:
        self._refuse_total_failure(current)
        drops = current.drops
        for reason, cause in drops.causes.items():
            logger.warning("step %d: %d %s; the first: %s", current.number + 1, drops.counts[reason], reason, cause)
        kept = sorted(current.kept, key=_order)
        batch = kept[: self._settings.groups_per_step]
        self._left_over = [*kept[len(batch) :], *self._left_over]
        later = {group.id for group in self._left_over}
        groups = sorted((group for group in current.groups if group.id not in later), key=_order)
        self._warn_if_short(current, len(batch))
        counters = {
            "rollout/left_over": float(len(self._left_over)),
            "rollout/requeued": float(current.requeued),
            "rollout/tries_max": float(current.tries),
            **self._tasks.metrics(),
        }
        return StepRollout(
            current.number, _numbered(groups), _numbered(batch, groups), drops.counts, drops.causes, counters
        )

    def _warn_if_short(self, current: _Step, kept: int) -> None:
        settings = self._settings
        if settings.fill == "kept" and kept < settings.groups_per_step and current.taken >= settings.max_groups:
            counted = ", ".join(f"{count} {reason}" for reason, count in current.drops.counts.most_common())
            logger.warning(
                "step %d: %d groups were generated (rollout.max_groups_per_step), %d of the %d wanted were kept (%s)",
                current.number + 1,
                current.taken,
                kept,
                settings.groups_per_step,
                counted or "none dropped",
            )

    def _refuse_total_failure(self, current: _Step) -> None:
        total = sum(len(group.trajectories) for group in current.groups)
        drops = current.drops
        if total and sum(drops.counts[reason] for reason in drops.causes) == total:
            counted = ", ".join(f"{drops.counts[reason]} {reason}" for reason in drops.causes)
            cause = next(iter(drops.causes.values()))
            raise RolloutError(f"none of the step's {total} trajectories can be used ({counted}); the first: {cause}")


def _begin(step: int, left_over: Sequence[Group]) -> _Step:
    """A step that starts with what is left over; after a resume that may be groups of the same step."""
    own = [group.index for group in left_over if _order(group)[0] == step]
    return _Step(step, first_index=max(own, default=-1) + 1, groups=list(left_over), kept=list(left_over))


def _order(group: Group) -> tuple[int, int]:
    """By the step that generated a group, then by its place there."""
    return int(group.id.removeprefix("s").partition("-")[0]), group.index


def _numbered(groups: Sequence[Group], among: Sequence[Group] | None = None) -> tuple[Group, ...]:
    """Groups with their place in this step as ``index``."""
    places = {group.id: place for place, group in enumerate(groups if among is None else among)}
    return tuple(replace(group, index=places[group.id]) for group in groups)
