"""Steps: when they are full, in which order, what is dropped, left over or tried again, and what a checkpoint holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

import anyio
import pytest

from miles_core.errors import DataError, RolloutError
from miles_core.kinds.filters import Verdict
from miles_core.lib.archive import dump_archive, load_archive
from miles_core.rollout.filtering import FilterChain, NamedFilter
from miles_core.rollout.groups import GroupWork
from miles_core.rollout.scheduler import FillSettings, RolloutScheduler
from miles_core.rollout.tasks import TaskStream
from miles_core.types import Group, Message, Status, Task

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio


class Numbers:
    """An endless source of tasks 0, 1, 2, ... in epochs of ``size``."""

    def __init__(self, size: int = 1000) -> None:
        self.size, self.at = size, 0

    def take(self, count: int):
        taken = [divmod(at, self.size) for at in range(self.at, self.at + count)]
        self.at += count
        return [(epoch, Task(str(index), (Message("user", str(index)),))) for epoch, index in taken]

    def state(self):
        return {"at": self.at}

    def restore(self, state) -> None:
        self.at = state["at"]

    def metrics(self):
        return {}


class Groups:
    """Makes groups; ``rewards(task)`` gives theirs, ``None`` an aborted member. ``order`` is that of finishing."""

    def __init__(self, rewards: Callable[[int], Sequence[float | None]], order: Sequence[int] = ()) -> None:
        self.rewards, self.order = rewards, list(order)
        self.done: dict[int, anyio.Event] = {number: anyio.Event() for number in order}
        self.seen: list[tuple[int, int]] = []

    async def run(self, work: GroupWork) -> None:
        number = int(work.pending.task.id)
        self.seen.append((number, len(work.done)))
        if number in self.order and self.order.index(number):
            await self.done[self.order[self.order.index(number) - 1]].wait()
        for member, reward in enumerate(self.rewards(number)):
            status = Status.ABORTED if reward is None else Status.COMPLETED
            work.done.setdefault(member, make_trajectory(f"{work.id}-t{member}", reward, status=status))
        work.group = Group(work.id, work.index, work.pending.task, tuple(work.done.values()))
        if number in self.done:
            self.done[number].set()


class Spread:
    stage = "group"

    def keep(self, group: Group) -> Verdict:
        return Verdict(len(set(group.rewards)) > 1, "no_spread")


def make(runner, *, filters: Sequence[object] = (Spread(),), source: Numbers | None = None, on_begin=None, **settings):
    settings = {"groups_per_step": 4, "max_groups": 32, **settings}
    chain = FilterChain([NamedFilter("spread", entry) for entry in filters])
    return RolloutScheduler(TaskStream(source or Numbers()), runner, chain, FillSettings(**settings), on_begin)


def tasks(groups) -> list[int]:
    return [int(group.task.id) for group in groups]


def useful(pattern: str) -> Callable[[int], Sequence[float]]:
    """Rewards with spread where the pattern, repeated, has a 1."""
    return lambda number: (0.0, 1.0) if pattern[number % len(pattern)] == "1" else (1.0, 1.0)


async def test_the_batch_is_in_the_order_of_tasks_whatever_finishes_first() -> None:
    step = await make(Groups(useful("1"), order=[3, 1, 0, 2])).step(0)
    assert tasks(step.groups) == tasks(step.kept) == [0, 1, 2, 3]
    assert [group.index for group in step.kept] == [0, 1, 2, 3]


async def test_a_generated_step_has_what_filters_left_and_reports_both_rewards() -> None:
    step = await make(Groups(useful("1011"))).step(0)
    assert (tasks(step.groups), tasks(step.kept)) == ([0, 1, 2, 3], [0, 2, 3])
    assert step.dropped == {"no_spread": 1}
    assert sum(step.rewards) / 8 == pytest.approx(5 / 8), "dropped groups are part of the reward"
    assert sum(r for group in step.kept for r in group.rewards) / 6 == pytest.approx(0.5)


async def test_a_kept_step_is_filled_exactly_and_the_rest_is_left_over() -> None:
    scheduler = make(Groups(useful("1011011")), fill="kept", over_sampling=7 / 4)
    step = await scheduler.step(0)
    assert tasks(step.kept) == [0, 2, 3, 5]
    assert step.dropped == {"no_spread": 2}
    assert step.counters["rollout/left_over"] == 1
    assert tasks(step.groups) == [0, 1, 2, 3, 4, 5], "a left-over group counts where it is trained"
    following = await scheduler.step(1)
    assert tasks(following.kept)[0] == 6, "and is not lost"


async def test_filling_goes_on_wave_by_wave_until_enough_are_kept() -> None:
    runner = Groups(useful("0001"))
    step = await make(runner, fill="kept").step(0)
    assert tasks(step.kept) == [3, 7, 11, 15]
    assert len(runner.seen) == 16


async def test_when_every_group_is_dropped_the_step_ends_at_its_bound_and_says_so(caplog) -> None:
    caplog.set_level(logging.WARNING, "miles.rollout")
    runner = Groups(useful("0"))
    with anyio.fail_after(5):
        step = await make(runner, fill="kept", max_groups=10).step(0)
    assert step.kept == ()
    assert step.dropped == {"no_spread": 10}
    assert len(runner.seen) == 10
    assert "10 groups were generated" in caplog.text
    assert "10 no_spread" in caplog.text


async def test_an_aborted_trajectory_is_generated_again_and_never_scored_as_zero() -> None:
    answers = {0: [(0.0, None), (0.0, 1.0)]}
    runner = Groups(lambda number: answers[number].pop(0) if answers.get(number) else (0.0, 1.0))
    scheduler = make(runner, groups_per_step=2)
    first = await scheduler.step(0)
    assert tasks(first.groups) == [1]
    assert first.counters["rollout/requeued"] == 1
    second = await scheduler.step(1)
    assert tasks(second.groups) == [0, 2]
    assert (0, 1) in runner.seen, "the finished member was kept"
    assert second.kept[0].rewards == (0.0, 1.0)
    assert second.counters["rollout/tries_max"] == 2


async def test_a_task_that_is_always_aborted_is_given_up_after_max_tries(caplog) -> None:
    caplog.set_level(logging.WARNING, "miles.rollout")
    runner = Groups(lambda number: (1.0, None) if number == 0 else (0.0, 1.0))
    scheduler = make(runner, groups_per_step=2, max_tries=3)
    steps = [await scheduler.step(number) for number in range(4)]
    assert [number for number, _ in runner.seen].count(0) == 3
    assert steps[2].dropped["aborted"] == 1
    assert "task 0: trajectories were aborted 3 times" in caplog.text


async def test_stragglers_can_be_continued_later_instead_of_waited_for() -> None:
    runner = Groups(useful("1"), order=[1, 0])
    runner.order, runner.done[99] = [99, 2], anyio.Event()  # task 2 waits for what never comes
    scheduler = make(runner, groups_per_step=2, fill="kept", over_sampling=1.5, stragglers="requeue")
    with anyio.fail_after(5):
        step = await scheduler.step(0)
    assert tasks(step.kept) == [0, 1]
    assert step.counters["rollout/requeued"] == 1
    runner.order = []
    assert tasks((await scheduler.step(1)).kept)[0] == 2


async def test_a_filter_that_raises_is_named_with_its_group() -> None:
    class Broken:
        stage = "group"

        def keep(self, group):
            raise KeyError("difficulty")

    with pytest.raises(RolloutError, match="filter spread failed on group s0-g0: KeyError"):
        await make(Groups(useful("1")), filters=[Broken()]).step(0)


async def test_a_step_whose_every_trajectory_failed_is_an_error_with_the_first_cause() -> None:
    runner = Groups(lambda number: (None, None))
    with pytest.raises(RolloutError, match="none of the step's 8 trajectories.*8 aborted"):
        await make(runner, max_tries=1).step(0)


async def test_the_end_of_the_data_makes_a_short_step_and_then_none() -> None:
    stream = TaskStream(Numbers(6), epochs=1)
    scheduler = RolloutScheduler(stream, Groups(useful("1")), FilterChain([]), FillSettings(4, max_groups=32))
    assert [tasks(step.groups) if step else None for step in [await scheduler.step(i) for i in range(3)]] == [
        [0, 1, 2, 3], [4, 5], None,
    ]  # fmt: skip


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_step_is_full_whether_what_waits_is_still_young_enough_or_not(staleness: int) -> None:
    scheduler = make(Groups(useful("1")), fill="kept", over_sampling=1.5)
    await scheduler.step(0)
    following = await scheduler.step(1, oldest_version=1 - staleness)  # the groups hold tokens of version 0
    assert len(following.kept) == 4
    assert tasks(following.kept) == ([4, 5, 6, 7] if staleness else [6, 7, 8, 9])
    assert following.dropped["stale"] == (0 if staleness else 2)
    assert {group.id for group in following.groups} >= {group.id for group in following.kept}


async def test_finished_members_of_a_continued_group_are_generated_anew_when_they_are_too_old() -> None:
    answers = {0: [(0.0, None), (0.0, 1.0)]}
    runner = Groups(lambda number: answers[number].pop(0) if answers.get(number) else (0.0, 1.0))
    scheduler = make(runner, groups_per_step=2)
    await scheduler.step(0)
    await scheduler.step(1, oldest_version=1)
    assert [done for number, done in runner.seen if number == 0] == [0, 0]


def resumed(scheduler: RolloutScheduler, runner, **settings) -> RolloutScheduler:
    """A new scheduler with the state of another, through the bytes of a checkpoint."""
    after = make(runner, **settings)
    state = load_archive(dump_archive(scheduler.state()))
    json.dumps(state["tasks"])
    after.restore(state)
    return after


async def test_a_resumed_scheduler_takes_the_next_task_and_brings_left_over_groups_back() -> None:
    options = {"groups_per_step": 2, "fill": "kept", "over_sampling": 2.5}
    before = make(Groups(useful("10110")), **options)
    first = await before.step(0)
    assert tasks(first.kept) == [0, 2]
    after = resumed(before, Groups(useful("10110")), **options)
    expected, got = await before.step(1), await after.step(1)
    assert tasks(got.kept) == tasks(expected.kept) == [3, 5]
    assert [group.rewards for group in got.kept] == [group.rewards for group in expected.kept]


async def test_tasks_in_flight_at_a_checkpoint_come_first_after_a_resume() -> None:
    runner = Groups(useful("1"), order=[99, 1])
    runner.done[99] = anyio.Event()
    before = make(runner, groups_per_step=3)
    async with anyio.create_task_group() as group:
        group.start_soon(before.step, 0)
        await anyio.wait_all_tasks_blocked()
        after = resumed(before, Groups(useful("1")), groups_per_step=3)
        group.cancel_scope.cancel()
    assert tasks((await after.step(0)).groups) == [0, 1, 2]
    assert tasks((await after.step(1)).groups) == [3, 4, 5]


async def test_kept_groups_of_a_step_in_the_making_are_trained_once_after_a_resume() -> None:
    runner = Groups(useful("10"), order=[99, 2])
    runner.done[99] = anyio.Event()
    before = make(runner, groups_per_step=2, fill="kept")
    async with anyio.create_task_group() as group:
        group.start_soon(before.step, 0)  # the first wave keeps task 0; task 2 of the second hangs
        await anyio.wait_all_tasks_blocked()
        after = resumed(before, Groups(useful("10")), groups_per_step=2, fill="kept")
        group.cancel_scope.cancel()
    step = await after.step(0)
    assert tasks(step.kept) == [0, 2]
    assert len({group.id for group in step.groups}) == len(step.groups), "no id is given twice"


async def test_tasks_taken_before_a_bad_row_are_not_lost() -> None:
    class Bad(Numbers):
        def take(self, count: int):
            if self.at == 2:
                raise DataError("tasks.jsonl:3: not JSON")
            return super().take(count)

    scheduler = make(Groups(useful("1")), source=Bad())
    with pytest.raises(DataError, match="tasks.jsonl:3"):
        await scheduler.step(0)
    assert [pending["task"]["id"] for pending in scheduler.state()["pending"]] == ["0", "1"]


async def test_the_beginning_of_a_step_is_told_once_with_the_first_tasks_and_nothing_is_lost_meanwhile() -> None:
    begun = []

    async def on_begin(step, first) -> None:
        waiting = [pending["task"]["id"] for pending in scheduler.state()["pending"]]
        assert [task.id for task in first] == waiting, "a checkpoint that is captured now holds them"
        begun.append((step, len(first)))

    scheduler = make(Groups(useful("1")), on_begin=on_begin, fill="kept", over_sampling=2, groups_per_step=2)
    for number in range(3):
        await scheduler.step(number)
    assert begun == [(0, 4), (1, 0), (2, 4)], "groups that are left over were enough for the second"


async def test_a_filter_that_awaits_never_judges_two_groups_at_once_nor_one_twice() -> None:
    judging, judged = 0, []

    class Slow:
        stage = "group"

        async def keep(self, group: Group) -> Verdict:
            nonlocal judging
            judging += 1
            assert judging == 1
            await anyio.sleep(0.001)
            judging -= 1
            judged.append(int(group.task.id))
            return Verdict(True)

    scheduler = make(Groups(useful("1")), filters=[Slow()], fill="kept", over_sampling=2.0, stragglers="requeue")
    step = await scheduler.step(0)
    assert len(step.kept) == 4
    assert sorted(judged) == sorted(set(judged))


async def test_a_group_that_a_filter_judges_is_part_of_a_checkpoint() -> None:
    judging, go_on = anyio.Event(), anyio.Event()

    class Waiting:
        stage = "group"

        async def keep(self, group: Group) -> Verdict:
            judging.set()
            await go_on.wait()
            return Verdict(True)

    scheduler = make(Groups(useful("1")), filters=[Waiting()])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scheduler.step, 0)
        await judging.wait()
        state = scheduler.state()
        go_on.set()
    assert [(record["task"]["id"], len(record["done"])) for record in state["pending"]] == [
        (str(number), 2) for number in range(4)
    ]


async def test_what_calls_into_plugins_took_is_among_a_step_s_metrics() -> None:
    scheduler = RolloutScheduler(
        TaskStream(Numbers()),
        Groups(useful("1")),
        FilterChain([]),
        FillSettings(2),
        plugin_metrics=lambda: {"plugins/kit/exact/calls": 3.0},
    )
    step = await scheduler.step(0)
    assert step.counters["plugins/kit/exact/calls"] == 3.0
