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
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from miles_core.rollout.filtering import FilterChain
    from miles_core.rollout.groups import GroupRunner
    from miles_core.rollout.tasks import TaskStream
    from miles_core.types import Task

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
    """A step in the making: ``groups`` that were generated for it, by id, before filters."""

    number: int
    next_index: int = 0
    taken: int = 0
    requeued: int = 0
    tries: int = 0
    begun: bool = False
    left_over: list[Group] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    kept: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)
    drops: Drops = field(default_factory=Drops)


class RolloutScheduler:
    """Generates whole steps.

    It remembers what belongs to later steps: groups that are left over, and tasks whose trajectories were aborted or
    stopped. :meth:`state` holds these and what is in flight, so that a resumed run loses no task and trains none twice.
    ``on_begin`` is called when a step begins, with the first tasks that are handed out for it. ``plugin_metrics`` gives
    what calls into plugins took since it was last asked.
    """

    def __init__(
        self,
        tasks: TaskStream,
        runner: GroupRunner,
        filters: FilterChain,
        settings: FillSettings,
        on_begin: Callable[[int, Sequence[Task]], Awaitable[None]] | None = None,
        plugin_metrics: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._tasks = tasks
        self._runner = runner
        self._filters = filters
        self._settings = settings
        self._on_begin = on_begin
        self._plugin_metrics = plugin_metrics
        self._settling = anyio.Lock()
        self._pending: list[Pending] = []
        self._left_over: list[Group] = []
        self._in_flight: list[GroupWork] = []
        self._step = _Step(-1)
        self._oldest_version = 0
        self._numbered: tuple[int, int] = (-1, 0)

    async def step(self, step: int, oldest_version: int = 0) -> StepRollout | None:
        """Generate, score and filter the groups of one step; ``None`` where the data has ended.

        What waits from earlier steps is used only if none of its tokens is of an older policy version than
        ``oldest_version``, the oldest that the step may be trained on; older groups are dropped as ``stale``.

        Raises:
            RolloutError: if no trajectory of the step can be used, with the first cause; or if a filter fails.
            DataError: if a row of the data is malformed.
        """
        self._oldest_version = oldest_version
        current = self._step = self._begin(step)
        ended = False
        while not ended and (count := self._wanted(current)):
            work = await self._take(count, current)
            ended = len(work) < count
            await self._wave(work, current)
        if ended and not current.taken and not current.left_over and not current.dropped:
            return None
        await self._begun([], current)
        return self._finish(current)

    def state(self) -> dict[str, Any]:
        """Everything that later steps need, as a plain record for a checkpoint."""
        unfinished = [work.unfinished() for work in self._in_flight]
        kept = [*self._step.left_over, *self._step.kept]
        return {
            "numbered": [self._step.number, self._step.next_index],
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
        self._numbered = tuple(state.get("numbered", (-1, 0)))

    def _begin(self, step: int) -> _Step:
        """A step that starts with the groups that are left over, where they are young enough."""
        number, index = self._numbered
        current = _Step(step, next_index=index if number == step else 0)
        for group in self._left_over:
            if _is_younger(group.oldest_version, self._oldest_version):
                current.left_over.append(group)
            else:
                current.dropped.append(group)
                current.drops.add("stale")
        self._left_over = []
        return current

    def _wanted(self, current: _Step) -> int:
        settings = self._settings
        if settings.fill == "generated":
            return 0 if current.taken else max(0, settings.groups_per_step - len(current.left_over))
        missing = max(0, settings.groups_per_step - len(current.left_over) - len(current.kept))
        return min(math.ceil(missing * settings.over_sampling), settings.max_groups - current.taken)

    async def _take(self, count: int, current: _Step) -> list[GroupWork]:
        """Tasks that wait from earlier steps come first."""
        fresh, error = await self._tasks.take(count - len(self._pending[:count]))
        waiting, self._pending = self._pending[:count], self._pending[count:]
        pending = [*(task.younger_than(self._oldest_version) for task in waiting), *fresh]
        if error is not None:  # the run ends here, and what was taken before is not lost
            self._pending = [*pending, *self._pending]
            raise error
        first = current.next_index
        current.taken += len(pending)
        current.next_index += len(pending)
        return [GroupWork(f"s{current.number}-g{first + i}", first + i, task) for i, task in enumerate(pending)]

    async def _wave(self, work: Sequence[GroupWork], current: _Step) -> None:
        self._in_flight = list(work)
        if work:
            await self._begun(work, current)
        stop_early = self._settings.fill == "kept" and self._settings.stragglers == "requeue"
        async with anyio.create_task_group() as tasks:

            async def one(item: GroupWork) -> None:
                await self._runner.run(item)
                if stop_early:
                    async with self._settling:  # so that no filter is judging when the rest is cancelled
                        await self._settle(item, current)
                        if not self._wanted(current):
                            tasks.cancel_scope.cancel()

            for item in work:
                tasks.start_soon(one, item)
        for item in work:
            if item in self._in_flight:  # in order, whoever was first
                await self._settle(item, current)

    async def _begun(self, work: Sequence[GroupWork], current: _Step) -> None:
        """Awaited only where everything that was taken is noted somewhere: a checkpoint may be captured meanwhile."""
        if not current.begun and self._on_begin is not None:
            current.begun = True
            await self._on_begin(current.number, [item.pending.task for item in work])

    async def _settle(self, work: GroupWork, current: _Step) -> None:
        """A group that is done is filtered; one with aborted trajectories, or that was stopped, is continued later.

        It stays among those in flight until filters have judged: a checkpoint may be captured meanwhile.
        """
        current.tries = max(current.tries, work.pending.tries + 1)
        if work.group is None:
            self._in_flight.remove(work)
            self._pending.append(work.unfinished())
            current.requeued += 1
            return
        aborted = any(trajectory.status is Status.ABORTED for trajectory in work.group.trajectories)
        if aborted and work.pending.tries + 1 < self._settings.max_tries:
            self._in_flight.remove(work)
            self._pending.append(work.retry())
            current.requeued += 1
            return
        if aborted:
            task, tries = work.pending.task.id, self._settings.max_tries
            logger.warning("task %s: trajectories were aborted %d times and are given up", task, tries)
        kept = await self._filters.apply([work.group], current.drops)
        self._in_flight.remove(work)
        current.kept += kept
        current.groups[work.group.id] = work.group
        if not kept:
            current.dropped.append(work.group)

    def _finish(self, current: _Step) -> StepRollout:
        self._refuse_total_failure(current)
        drops = current.drops
        for reason, cause in drops.causes.items():
            logger.warning("step %d: %d %s; the first: %s", current.number + 1, drops.counts[reason], reason, cause)
        kept = [*current.left_over, *sorted(current.kept, key=_place)]
        batch, self._left_over = kept[: self._settings.groups_per_step], kept[self._settings.groups_per_step :]
        everything = [*batch, *current.dropped]
        waited = [group for group in everything if group.id not in current.groups]
        groups = [*waited, *sorted((current.groups[g.id] for g in everything if g.id in current.groups), key=_place)]
        places = {group.id: place for place, group in enumerate(groups)}
        self._warn_if_short(current, len(batch))
        counters = {
            "rollout/left_over": float(len(self._left_over)),
            "rollout/requeued": float(current.requeued),
            "rollout/tries_max": float(current.tries),
            **self._tasks.metrics(),
            **self._plugin_metrics(),
        }
        self._step = _Step(-1)
        return StepRollout(
            current.number,
            tuple(replace(group, index=places[group.id]) for group in groups),
            tuple(replace(group, index=places[group.id]) for group in batch),
            drops.counts,
            drops.causes,
            counters,
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
        total = sum(len(group.trajectories) for group in current.groups.values())
        drops = current.drops
        if total and sum(drops.counts[reason] for reason in drops.causes) == total:
            counted = ", ".join(f"{drops.counts[reason]} {reason}" for reason in drops.causes)
            cause = next(iter(drops.causes.values()))
            raise RolloutError(f"none of the step's {total} trajectories can be used ({counted}); the first: {cause}")


def _is_younger(version: int | None, oldest_version: int) -> bool:
    return version is None or version >= oldest_version


def _place(group: Group) -> int:
    return group.index
