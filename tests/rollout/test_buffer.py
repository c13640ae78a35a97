"""The buffer: one staleness bound serves synchronous and asynchronous training."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from miles_core.errors import RolloutError
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.scheduler import StepRollout
from miles_core.types import Group

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio


def rollout(step: int, *versions: int) -> StepRollout:
    groups = tuple(
        Group(f"g{i}", i, make_trajectory("x").task, (make_trajectory("x", 1.0, version=v),))
        for i, v in enumerate(versions)
    )
    return StepRollout(step, groups, groups, Counter())


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_generation_is_never_further_ahead_than_the_bound(max_staleness: int) -> None:
    buffer = StepBuffer(max_staleness)
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


async def test_groups_older_than_the_bound_are_dropped_and_counted() -> None:
    buffer = StepBuffer(1)
    await buffer.put(rollout(0, 3, 4, 5))
    taken = await buffer.get(0, version=5)
    assert [g.index for g in taken.kept] == [1, 2]
    assert taken.dropped == {"stale": 1}
    assert len(taken.groups) == 3


async def test_a_version_from_the_future_is_an_error_not_negative_staleness() -> None:
    buffer = StepBuffer(2)
    await buffer.put(rollout(0, 55, 57))
    with pytest.raises(RolloutError, match="version 55.*committed version is 1"):
        await buffer.get(0, version=1)


async def test_one_token_from_the_future_is_enough_beside_old_ones() -> None:
    trajectories = (make_trajectory("old", 1.0, version=1), make_trajectory("new", 1.0, version=57))
    group = Group("g0", 0, trajectories[0].task, trajectories)
    buffer = StepBuffer(2)
    await buffer.put(StepRollout(0, (group,), (group,), Counter()))
    with pytest.raises(RolloutError, match="version 57.*committed version is 1"):
        await buffer.get(0, version=1)


async def test_waiting_for_a_step_can_be_cancelled() -> None:
    buffer = StepBuffer(0)
    with anyio.move_on_after(0.01) as scope:
        await buffer.get(0, version=0)
    assert scope.cancelled_caught
