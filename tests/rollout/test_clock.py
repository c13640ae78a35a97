"""An episode's clock: it runs out, and it stands still while there is no engine."""

from __future__ import annotations

import anyio
import pytest

from miles_core.rollout.clock import clock_stopped, episode_clock

pytestmark = pytest.mark.anyio


async def test_the_clock_runs_out() -> None:
    with anyio.fail_after(5), episode_clock(0.01):
        await anyio.sleep_forever()


async def test_a_stopped_clock_does_not_run_out_and_goes_on_with_what_was_left() -> None:
    waited = False
    with anyio.fail_after(5), episode_clock(0.05):
        with clock_stopped():
            await anyio.sleep(0.2)
            waited = True
        await anyio.sleep_forever()
    assert waited


async def test_stops_that_overlap_count_as_one() -> None:
    ends: list[float] = []

    async def stop(seconds: float) -> None:
        with clock_stopped():
            await anyio.sleep(seconds)
        ends.append(seconds)

    with anyio.fail_after(5), episode_clock(0.1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop, 0.15)
            tasks.start_soon(stop, 0.25)
        with clock_stopped():
            await stop(0.0)
            await anyio.sleep(0.15)
        ends.append(0.15)
        await anyio.sleep_forever()
    assert ends == [0.15, 0.25, 0.0, 0.15]


async def test_each_episode_has_a_clock_of_its_own() -> None:
    ended: list[str] = []

    async def episode(name: str, *, waits: bool) -> None:
        with episode_clock(0.02):
            if waits:
                with clock_stopped():
                    await anyio.sleep(0.2)
            else:
                await anyio.sleep_forever()
        ended.append(name)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: episode("waits", waits=True))
            tasks.start_soon(lambda: episode("runs", waits=False))
    assert ended == ["runs", "waits"]


async def test_outside_of_an_episode_there_is_no_clock_to_stop() -> None:
    with clock_stopped():
        await anyio.lowlevel.checkpoint()


async def test_an_end_from_outside_passes_a_stopped_clock() -> None:
    with anyio.move_on_after(0.01) as scope:
        with episode_clock(60), clock_stopped():
            await anyio.sleep_forever()
    assert scope.cancelled_caught
