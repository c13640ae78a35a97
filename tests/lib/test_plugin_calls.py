"""The calls into one plugin: bounded, timed, counted, and warned about where they are slow."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import anyio
import pytest

from miles_core.lib import plugin_calls as module
from miles_core.lib.plugin_calls import CallLog, CallTimeoutError, ItemError, PluginCalls

pytestmark = pytest.mark.anyio


async def gather(count: int, function) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(function)


async def test_blocking_calls_run_side_by_side_up_to_the_bound() -> None:
    calls, running, most, lock = PluginCalls("p", threads=4), 0, 0, threading.Lock()
    together = threading.Barrier(4, timeout=10)

    def block() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    await gather(16, lambda: calls("score", block))
    assert most == 4


async def test_a_time_out_counts_from_when_there_is_room_and_leaves_room_for_others() -> None:
    calls, release = PluginCalls("p", threads=1), threading.Event()
    timed_out = []

    async def hang() -> None:
        with pytest.raises(CallTimeoutError, match=r"took longer than 0\.2 s"):
            await calls("score", release.wait, 60, limit=0.2)
        timed_out.append(True)

    started = time.monotonic()
    await gather(3, hang)
    assert len(timed_out) == 3
    assert time.monotonic() - started >= 0.6, "one after the other"
    assert await calls("score", lambda: 1, limit=5) == 1
    release.set()


async def test_a_plugin_that_never_returns_is_called_no_more_once_too_many_calls_hang(monkeypatch) -> None:
    monkeypatch.setattr(module, "LEFT_BEHIND", 2)
    calls, release = PluginCalls("p", threads=1), threading.Event()
    for _ in range(3):
        with pytest.raises(CallTimeoutError):
            await calls("score", release.wait, 60, limit=0.05)
    with pytest.raises(RuntimeError, match="3 earlier calls that were given up are still running"):
        await calls("score", lambda: 1, limit=5)
    release.set()
    while calls._running:
        await anyio.lowlevel.checkpoint()
    assert await calls("score", lambda: 1, limit=5) == 1


async def test_calls_seconds_and_failures_are_counted_since_the_last_time() -> None:
    log = CallLog()
    calls, same = log.of("kit/exact", "reward model exact (kit 1.0)"), log.of("kit/exact", "reward model other")

    async def later(value: int) -> int:
        return value

    assert (await calls("score", later, 1), await same("score", lambda: 2)) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        await calls("score", lambda: 1 / 0)
    metrics = log.take_metrics()
    assert metrics.pop("plugins/kit/exact/seconds") > 0
    assert metrics == {"plugins/kit/exact/calls": 3.0, "plugins/kit/exact/failures": 1.0}
    assert log.take_metrics() == {}


async def test_a_slow_call_is_warned_about_once_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    warned = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.set()

    handler = Told()
    logging.getLogger("miles.plugins").addHandler(handler)
    try:
        calls = CallLog(slow_call=0.05).of("kit/judge", "reward model judge (kit 1.0)")

        def slow() -> None:
            assert warned.wait(10), "the warning comes while the call runs"

        await gather(3, lambda: calls("score", slow))
    finally:
        logging.getLogger("miles.plugins").removeHandler(handler)
    [message] = [record.getMessage() for record in caplog.records if record.name == "miles.plugins"]
    assert message == "reward model judge (kit 1.0): score() has been running for 0.05 s (plugins.slow_call = 0.05)"


async def test_a_coroutine_that_blocks_the_loop_is_warned_about_when_it_returns(caplog) -> None:
    async def blocks() -> None:
        time.sleep(0.05)  # noqa: ASYNC251 - what such a plugin does wrong

    await PluginCalls("p", slow_call=0.04)("score", blocks)
    [message] = [record.getMessage() for record in caplog.records if record.name == "miles.plugins"]
    assert message.startswith("p: score() took 0.")


def test_each_item_has_its_own_time_and_one_thread_serves_them_all() -> None:
    threads = set()

    def keep(item: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.06)
        return item + 1

    async def main() -> list[int]:
        kept: list[int] = await PluginCalls("p").each("keep", keep, range(10), 0.5)
        return kept

    assert asyncio.run(main(), debug=True) == list(range(1, 11)), "0.6 s in all"
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize("coroutine", [True, False])
async def test_the_item_that_fails_is_known(coroutine: bool) -> None:
    release = threading.Event()

    def keep(item: int) -> int:
        return 1 // (item - 2)

    async def keep_later(item: int) -> int:
        return keep(item)

    with pytest.raises(ItemError) as failed:
        await PluginCalls("p").each("keep", keep_later if coroutine else keep, range(4), 5.0)
    assert failed.value.index == 2
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with pytest.raises(ItemError) as failed:
        await PluginCalls("p").each("keep", lambda item: item and release.wait(60), range(4), 0.1)
    release.set()
    assert failed.value.index == 1
    assert isinstance(failed.value.__cause__, CallTimeoutError)


async def test_plain_functions_that_return_something_to_await_are_awaited() -> None:
    async def later(item: int) -> int:
        await anyio.lowlevel.checkpoint()
        return item + 1

    assert await PluginCalls("p").each("keep", lambda item: later(item), range(3), 5.0) == [1, 2, 3]


def test_the_same_warning_comes_the_first_the_tenth_and_the_hundredth_time(caplog: pytest.LogCaptureFixture) -> None:
    calls = PluginCalls("acme-envs/maze", "environment maze (acme-envs 1.2)")
    for _ in range(110):
        calls.warn("close() failed")
    assert [record.getMessage() for record in caplog.records] == [
        "environment maze (acme-envs 1.2): close() failed",
        "environment maze (acme-envs 1.2): close() failed (warning number 10)",
        "environment maze (acme-envs 1.2): close() failed (warning number 100)",
    ]
