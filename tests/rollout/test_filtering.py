"""Filters: order kept, drops counted by reason, errors never decide."""

from __future__ import annotations

from collections import Counter

import pytest

from filter_hub.equal_rewards import EqualRewards
from miles_core.errors import RolloutError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.filters import BufferedGroup, Verdict, adapt
from miles_core.rollout.filtering import Drops, FilterChain, NamedFilter
from miles_core.types import Group, Status

from .conftest import make_trajectory


def group(index: int, *rewards: float | None, **options) -> Group:
    trajectories = tuple(make_trajectory(f"g{index}t{i}", r, **options) for i, r in enumerate(rewards))
    return Group(f"g{index}", index, trajectories[0].task, trajectories)


def named(function) -> NamedFilter:
    return NamedFilter(function.__name__, adapt(function)(None, PluginContext()))


EQUAL = NamedFilter("equal_rewards", EqualRewards(None, PluginContext()))


def test_groups_of_equal_rewards_are_dropped_and_counted() -> None:
    dropped = Drops()
    kept = FilterChain([EQUAL]).apply([group(0, 1, 0), group(1, 1, 1), group(2, 0, 0), group(3, 0, 1)], dropped)
    assert [g.index for g in kept] == [0, 3]
    assert dropped.counts == {"equal_rewards": 2}
    assert dropped.causes == {}


def test_rewards_equal_up_to_rounding_are_equal() -> None:
    assert FilterChain([EQUAL]).apply([group(0, *[0.1 + 0.2, 0.3])], Drops()) == []


def test_unscored_failed_and_aborted_trajectories_never_reach_a_filter() -> None:
    mixed = group(0, 1, None, 0)
    failed = make_trajectory("f", 0.0, status=Status.FAILED)
    aborted = make_trajectory("a", 0.0, status=Status.ABORTED)
    whole = Group("g", 0, mixed.task, (*mixed.trajectories, failed, aborted))
    dropped = Drops()
    kept = FilterChain([EQUAL]).apply([whole], dropped)
    assert [t.id for t in kept[0].trajectories] == ["g0t0", "g0t2"]
    assert dropped.counts == {"unscored": 1, "failed": 1, "aborted": 1}
    assert set(dropped.causes) == {"unscored", "failed", "aborted"}


@pytest.mark.parametrize("error", [KeyError("difficulty"), SystemExit(0)])
def test_a_filter_that_raises_stops_the_run_naming_filter_and_group(error: BaseException) -> None:
    def picky(item):
        raise error

    with pytest.raises(RolloutError, match=f"filter picky raised {type(error).__name__} on group g2"):
        FilterChain([named(picky)]).apply([group(2, 1, 0)], Drops())


def test_a_function_that_returns_no_bool_is_refused() -> None:
    def vague(item):
        return None

    with pytest.raises(RolloutError, match="vague"):
        FilterChain([named(vague)]).apply([group(0, 1, 0)], Drops())


def test_the_first_filter_that_drops_names_the_reason() -> None:
    def too_easy(item):
        return False

    def too_long(item):
        return False

    dropped = Drops()
    FilterChain([named(too_easy), named(too_long)]).apply([group(0, 1, 0)], dropped)
    assert dropped.counts == {"too_easy": 1}


def test_filters_of_stage_buffer_judge_when_the_group_is_taken_and_not_before() -> None:
    class TooStale:
        stage = "buffer"

        def keep(self, item: BufferedGroup) -> Verdict:
            return Verdict(item.staleness < 2, "too_stale")

    chain = FilterChain([NamedFilter("too_stale", TooStale())])
    groups = [group(0, 1, 0), group(1, 1, 0)]
    assert [item.id for item in chain.apply(groups, Drops())] == ["g0", "g1"]
    dropped: Counter[str] = Counter()
    assert chain.apply_in_buffer([BufferedGroup(g, 1 + g.index) for g in groups], dropped) == groups[:1]
    assert dropped == {"too_stale": 1}
