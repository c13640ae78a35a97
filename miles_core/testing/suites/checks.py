"""What several suites measure or compare."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.lib.calls import call
from miles_core.types.records import to_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BLOCK_LIMIT = 0.2
"""Seconds that a coroutine of a plugin may keep the event loop from others: all generation stands still then."""

_TICK = 0.01
_TRIES = 3


def photograph(item: Any) -> bytes:
    """Bytes that differ if any data of a trajectory, group, task or the like was changed in between."""
    return pickle.dumps(to_record(item))


async def within(seconds: float, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result of a call, made as a run makes it: awaited, or in a thread.

    Raises:
        TimeoutError: if it takes longer than ``seconds``.
    """
    with anyio.fail_after(seconds):
        return await call(function, *arguments, **keywords)


async def longest_block(action: Callable[[], Awaitable[Any]]) -> float:
    """The longest time, in seconds, that nothing else ran in the event loop; the shortest of a few tries.

    A thread of this process counts the time, so that what a busy machine takes from both counts for little.
    """
    shortest = float("inf")
    for _ in range(_TRIES):
        shortest = min(shortest, await _longest_gap(action))
        if shortest < BLOCK_LIMIT:
            break
    return shortest


class _Clock(threading.Thread):
    """Counts ticks until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.ticks = 0

    def run(self) -> None:
        while not self.stop.wait(_TICK):
            self.ticks += 1


async def _longest_gap(action: Callable[[], Awaitable[Any]]) -> float:
    clock = _Clock()
    gaps = []

    async def beat() -> None:
        last = clock.ticks
        while True:
            try:
                await anyio.sleep(_TICK / 2)
            finally:  # the last gap counts too
                gaps.append(clock.ticks - last)
            last = clock.ticks

    clock.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            await anyio.lowlevel.checkpoint()
            await action()
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    finally:
        clock.stop.set()
        clock.join()
    return max(gaps) * _TICK
