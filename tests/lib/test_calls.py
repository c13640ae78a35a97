"""Plugin calls: sync and async alike, never in the loop's way, never keeping the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import anyio
import pytest

from miles_core.lib.calls import call, run_in_thread

pytestmark = pytest.mark.anyio


async def double(value):
    await anyio.lowlevel.checkpoint()
    return 2 * value


class AsyncCallable:
    async def __call__(self, value):
        return 2 * value


@pytest.mark.parametrize("function", [double, lambda value: 2 * value, lambda value: double(value), AsyncCallable()])
async def test_sync_async_and_callable_objects_give_the_same(function) -> None:
    assert await call(function, 4) == 8


async def test_a_blocking_call_leaves_the_loop_free() -> None:
    release = threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, release.wait)
        await anyio.wait_all_tasks_blocked()
        release.set()


async def test_many_blocking_calls_run_side_by_side() -> None:
    barrier = threading.Barrier(100, timeout=10)
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(call, barrier.wait)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), StopIteration()])
async def test_what_the_function_raises_is_raised_where_it_is_awaited(error: BaseException) -> None:
    def broken():
        raise error

    with pytest.raises((KeyError, SystemExit, RuntimeError)):
        await run_in_thread(broken)


@pytest.mark.parametrize("stop", [SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("coroutine", [True, False])
async def test_a_plugin_can_neither_end_nor_cancel_its_caller(stop: BaseException, coroutine: bool) -> None:
    def raises():
        raise stop

    async def raises_later():
        raise stop

    with pytest.raises(RuntimeError, match=f"raised {type(stop).__name__}"):
        await call(raises_later if coroutine else raises)


async def test_a_real_cancellation_passes() -> None:
    with anyio.move_on_after(0.05) as scope:
        await call(anyio.sleep_forever)
    assert scope.cancelled_caught


async def test_cancelling_does_not_wait_for_the_thread() -> None:
    release = threading.Event()
    started = time.monotonic()
    with anyio.move_on_after(0.05):
        await run_in_thread(release.wait, 30)
    assert time.monotonic() - started < 10
    release.set()


def test_a_call_that_never_returns_does_not_keep_the_process_alive() -> None:
    script = """
import anyio, time
from miles_core.lib.calls import call
async def main():
    with anyio.move_on_after(0.1):
        await call(time.sleep, 600)
anyio.run(main)
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "ended\n"
