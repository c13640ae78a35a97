"""Work ends with its event, and errors come out bare."""

from __future__ import annotations

import anyio
import pytest

from miles_core.router.disconnect import run_until

pytestmark = pytest.mark.anyio


async def test_the_event_cancels_the_work_and_its_clean_up_runs():
    started, log = anyio.Event(), []

    async def work() -> None:
        try:
            started.set()
            await anyio.sleep_forever()
        finally:
            log.append("clean")

    with anyio.fail_after(5):
        await run_until(started.wait, work)
    assert log == ["clean"]


async def test_the_event_is_no_longer_waited_for_when_the_work_is_done():
    log = []

    async def event() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("event ended")

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("work done")

    with anyio.fail_after(5):
        await run_until(event, work)
    assert log == ["work done", "event ended"]


async def test_an_error_of_the_work_comes_out_as_it_is():
    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError("work")

    with pytest.raises(ZeroDivisionError, match="work"):
        await run_until(anyio.sleep_forever, work)


async def test_an_error_of_the_event_ends_the_work_and_comes_out_as_it_is():
    async def event() -> None:
        raise ZeroDivisionError("event")

    with anyio.fail_after(5), pytest.raises(ZeroDivisionError, match="event"):
        await run_until(event, anyio.sleep_forever)


async def test_cancellation_from_outside_passes_through():
    with anyio.move_on_after(0.01) as scope:
        await run_until(anyio.sleep_forever, anyio.sleep_forever)
    assert scope.cancelled_caught
