"""Filters: order kept, drops counted by reason, errors never decide."""

from __future__ import annotations

import threading
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from filter_hub.equal_rewards import EqualRewards
from miles_core.errors import RolloutError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.filters import BufferedGroup, Verdict, adapt
from miles_core.lib.plugin_calls import PluginCalls
from miles_core.rollout.filtering import Drops, FilterChain, NamedFilter
from miles_core.types import Group, Status

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio


def group(index: int, *rewards: float | None, **options) -> Group:
    trajectories = tuple(make_trajectory(f"g{index}t{i}", r, **options) for i, r in enumerate(rewards))
    return Group(f"g{index}", index, trajectories[0].task, trajectories)


def named(function) -> NamedFilter:
    return NamedFilter(function.__name__, adapt(function)(None, PluginContext()))


EQUAL = NamedFilter("equal_rewards", EqualRewards(None, PluginContext()))


async def test_groups_of_equal_rewards_are_dropped_and_counted() -> None:
    dropped = Drops()
    kept = await FilterChain([EQUAL]).apply([group(0, 1, 0), group(1, 1, 1), group(2, 0, 0), group(3, 0, 1)], dropped)
    assert [g.index for g in kept] == [0, 3]
    assert dropped.counts == {"equal_rewards": 2}
    assert dropped.causes == {}


async def test_rewards_equal_up_to_rounding_are_equal() -> None:
    assert await FilterChain([EQUAL]).apply([group(0, *[0.1 + 0.2, 0.3])], Drops()) == []


async def test_unscored_failed_and_aborted_trajectories_never_reach_a_filter() -> None:
    mixed = group(0, 1, None, 0)
    failed = make_trajectory("f", 0.0, status=Status.FAILED)
    aborted = make_trajectory("a", 0.0, status=Status.ABORTED)
    whole = Group("g", 0, mixed.task, (*mixed.trajectories, failed, aborted))
    dropped = Drops()
    kept = await FilterChain([EQUAL]).apply([whole], dropped)
    assert [t.id for t in kept[0].trajectories] == ["g0t0", "g0t2"]
    assert dropped.counts == {"unscored": 1, "failed": 1, "aborted": 1}
    assert set(dropped.causes) == {"unscored", "failed", "aborted"}


@pytest.mark.parametrize("error", [KeyError("difficulty"), SystemExit(0)])
async def test_a_filter_that_raises_stops_the_run_naming_filter_and_group(error: BaseException) -> None:
    def picky(item):
        raise error

    with pytest.raises(RolloutError, match=f"filter picky failed on group g2: .*{type(error).__name__}"):
        await FilterChain([named(picky)]).apply([group(2, 1, 0)], Drops())


async def test_a_function_that_returns_no_bool_is_refused() -> None:
    def vague(item):
        return None

    with pytest.raises(RolloutError, match="vague"):
        await FilterChain([named(vague)]).apply([group(0, 1, 0)], Drops())


async def test_the_first_filter_that_drops_names_the_reason() -> None:
    def too_easy(item):
        return False

    def too_long(item):
        return False

    dropped = Drops()
    await FilterChain([named(too_easy), named(too_long)]).apply([group(0, 1, 0)], dropped)
    assert dropped.counts == {"too_easy": 1}


async def test_filters_of_stage_buffer_judge_when_the_group_is_taken_and_not_before() -> None:
    class TooStale:
        stage = "buffer"

        def keep(self, item: BufferedGroup) -> Verdict:
            return Verdict(item.staleness < 2, "too_stale")

    chain = FilterChain([NamedFilter("too_stale", TooStale())])
    groups = [group(0, 1, 0), group(1, 1, 0)]
    assert [item.id for item in await chain.apply(groups, Drops())] == ["g0", "g1"]
    dropped: Counter[str] = Counter()
    assert await chain.apply_in_buffer([BufferedGroup(g, 1 + g.index) for g in groups], dropped) == groups[:1]
    assert dropped == {"too_stale": 1}


async def test_sync_async_and_awaitable_filters_judge_alike_and_in_config_order() -> None:
    seen = []

    def even(item):
        seen.append(("even", item.index))
        return item.index % 2 == 0

    async def small(item):
        await anyio.sleep(0.01 * (4 - item.index))  # the last is done first
        seen.append(("small", item.index))
        return Verdict(item.index < 3, "large")

    async def later(item):
        return item.index > 0

    filters = [named(even), named(small), NamedFilter("later", adapt(lambda item: later(item))(None, PluginContext()))]
    dropped = Drops()
    kept = await FilterChain(filters).apply([group(i, 1, 0) for i in range(5)], dropped)
    assert [g.index for g in kept] == [2]
    assert dropped.counts == {"even": 2, "large": 1, "lambda": 1}
    assert seen[:5] == [("even", i) for i in range(5)]
    assert sorted(seen[5:]) == [("small", i) for i in (0, 2, 4)], "what one drops, the next does not see"


async def test_a_blocking_filter_runs_off_the_loop_and_in_one_thread() -> None:
    threads, beats, go_on = set(), 0, threading.Event()

    class Blocking:
        stage = "sample"

        def keep(self, item):
            threads.add(threading.get_ident())
            assert go_on.wait(10)
            return Verdict(True)

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.lowlevel.checkpoint()
            beats += 1
            if beats == 100:
                go_on.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        groups = [group(i, 1, 0) for i in range(4)]
        kept = await FilterChain([NamedFilter("blocking", Blocking())]).apply(groups, Drops())
        tasks.cancel_scope.cancel()
    assert len(kept) == 4
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize("coroutine", [True, False])
async def test_a_filter_that_hangs_is_an_error_and_drops_nothing(coroutine: bool) -> None:
    release, dropped = threading.Event(), Drops()

    class Hanging:
        stage = "group"

        def keep(self, item):
            return Verdict(True) if item.index == 0 else release.wait(60)

    class HangingLater(Hanging):
        async def keep(self, item):
            return Verdict(True) if item.index == 0 else await anyio.sleep_forever()

    calls = PluginCalls("acme-kit/hang", "filter hang (acme-kit 1.2)")
    entry = NamedFilter("hang", HangingLater() if coroutine else Hanging(), 0.1, calls)
    with pytest.raises(RolloutError, match=r"hang \(acme-kit 1\.2\) failed on group g1: took longer than 0\.1 s"):
        await FilterChain([entry]).apply([group(0, 1, None), group(1, 1, 0)], dropped)
    release.set()
    assert dropped.counts == {}, "what was not decided is not counted"
