"""The buffer: one staleness bound serves synchronous and asynchronous training."""

from __future__ import annotations

from collections import Counter

import anyio
import numpy as np
import pytest

from miles_core.errors import RolloutError
from miles_core.kinds.filters import Verdict
from miles_core.lib.archive import dump_archive, load_archive
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.filtering import FilterChain, NamedFilter
from miles_core.rollout.step import StepRollout
from miles_core.types import Group
from miles_core.types.versions import SkippedVersions

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio
NO_FILTERS = FilterChain([])


def rollout(step: int, *versions: int) -> StepRollout:
    groups = tuple(
        Group(f"g{i}", i, make_trajectory("x").task, (make_trajectory("x", 1.0, version=v),))
        for i, v in enumerate(versions)
    )
    return StepRollout(step, groups, groups, Counter())


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_generation_is_never_further_ahead_than_the_bound(max_staleness: int) -> None:
    buffer = StepBuffer(max_staleness, NO_FILTERS)
    ahead = []
    trained = 0

    async def generate() -> None:
        for step in range(8):
            await buffer.reserve(step)
            ahead.append(step - trained)
            await buffer.put(rollout(step, 0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        for step in range(8):
            await anyio.wait_all_tasks_blocked()
            await buffer.get(step, version=0)
            await anyio.wait_all_tasks_blocked()
            trained = step + 1
            await buffer.trained(step)
    assert max(ahead) == max_staleness


async def test_generation_may_be_kept_closer_than_the_bound_on_staleness() -> None:
    buffer = StepBuffer(2, NO_FILTERS, ahead=0)
    with anyio.move_on_after(0.01) as scope:
        await buffer.reserve(1)
    assert scope.cancelled_caught


async def test_a_step_is_in_the_buffer_before_put_awaits_anything() -> None:
    buffer = StepBuffer(1, NO_FILTERS)
    putting = buffer.put(rollout(0, 0))
    putting.send(None)
    assert [record["step"] for record in buffer.state()] == [0]
    putting.close()


async def test_groups_older_than_the_bound_are_dropped_and_counted() -> None:
    buffer = StepBuffer(1, NO_FILTERS)
    await buffer.put(rollout(0, 3, 4, 5))
    taken = await buffer.get(0, version=5)
    assert [g.index for g in taken.kept] == [1, 2]
    assert taken.dropped == {"stale": 1}
    assert len(taken.groups) == 3


async def test_a_version_from_the_future_is_an_error_not_negative_staleness() -> None:
    buffer = StepBuffer(2, NO_FILTERS)
    await buffer.put(rollout(0, 55, 57))
    with pytest.raises(RolloutError, match="version 55.*committed version is 1"):
        await buffer.get(0, version=1)


async def test_one_token_from_the_future_is_enough_beside_old_ones() -> None:
    trajectories = (make_trajectory("old", 1.0, version=1), make_trajectory("new", 1.0, version=57))
    group = Group("g0", 0, trajectories[0].task, trajectories)
    buffer = StepBuffer(2, NO_FILTERS)
    await buffer.put(StepRollout(0, (group,), (group,), Counter()))
    with pytest.raises(RolloutError, match="version 57.*committed version is 1"):
        await buffer.get(0, version=1)


async def test_waiting_for_a_step_can_be_cancelled() -> None:
    buffer = StepBuffer(0, NO_FILTERS)
    with anyio.move_on_after(0.01) as scope:
        await buffer.get(0, version=0)
    assert scope.cancelled_caught


async def test_the_end_of_the_data_reaches_the_trainer_after_the_steps_before_it() -> None:
    buffer = StepBuffer(1, NO_FILTERS)
    await buffer.put(rollout(0, 0))
    await buffer.end()
    assert (await buffer.get(0, version=0)).step == 0
    assert await buffer.get(1, version=1) is None


async def test_filters_of_stage_buffer_count_what_they_drop() -> None:
    class OnPolicy:
        stage = "buffer"

        def keep(self, item):
            return Verdict(item.staleness == 0, "off_policy")

    buffer = StepBuffer(2, FilterChain([NamedFilter("on_policy", OnPolicy())]))
    await buffer.put(rollout(0, 3, 4, 5))
    taken = await buffer.get(0, version=5)
    assert [group.index for group in taken.kept] == [2]
    assert taken.dropped == {"off_policy": 2}


async def test_its_content_survives_a_checkpoint_with_tokens_logprobs_and_versions() -> None:
    before = StepBuffer(2, NO_FILTERS, trained=4)
    await before.put(rollout(4, 3, 4))
    await before.put(rollout(5, 4))
    after = StepBuffer(2, NO_FILTERS, trained=4)
    after.restore(load_archive(dump_archive(before.state())))
    assert after.next_step == 6
    taken = await after.get(4, version=4)
    assert [group.oldest_version for group in taken.kept] == [3, 4]
    old, new = (step.groups[0].trajectories[0].samples[0] for step in (rollout(4, 3), taken))
    for name in ("tokens", "loss_mask", "logprobs"):
        assert np.array_equal(getattr(old, name), getattr(new, name))
        assert getattr(old, name).dtype == getattr(new, name).dtype
    assert (old.versions, old.status, old.reward) == (new.versions, new.status, new.reward)


async def test_a_resumed_buffer_waits_for_the_step_after_the_trained_ones() -> None:
    buffer = StepBuffer(0, NO_FILTERS, trained=7)
    assert buffer.next_step == 7
    with anyio.fail_after(1):
        await buffer.reserve(7)
    with anyio.move_on_after(0.01) as scope:
        await buffer.reserve(8)
    assert scope.cancelled_caught


async def test_a_filter_that_fails_costs_a_checkpoint_no_step() -> None:
    class Broken:
        stage = "buffer"

        def keep(self, item):
            raise KeyError("x")

    buffer = StepBuffer(2, FilterChain([NamedFilter("broken", Broken())]))
    await buffer.put(rollout(0, 3))
    with pytest.raises(RolloutError, match="filter broken failed on group g0: KeyError: 'x'"):
        await buffer.get(0, version=3)
    assert [record["step"] for record in buffer.state()] == [0]


async def test_versions_that_a_resume_skipped_make_no_group_stale() -> None:
    buffer = StepBuffer(1, NO_FILTERS, skipped=SkippedVersions(((4, 7),)))
    await buffer.put(rollout(0, 3, 2, 1, 7))
    taken = await buffer.get(0, version=7)
    assert taken is not None
    assert [group.oldest_version for group in taken.kept] == [3, 2, 7]
    assert taken.dropped == {"stale": 1}
