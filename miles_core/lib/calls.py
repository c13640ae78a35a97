"""Calls into plugin code that may be sync or async, may block, and may never return."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from miles_core.lib.error_text import error_text
from miles_core.lib.signatures import is_async

if TYPE_CHECKING:
    from collections.abc import Callable


async def call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Await a coroutine function; run a plain one in a thread, and await what it returns if that is awaitable.

    What would end or cancel the caller, such as ``SystemExit``, comes out as a RuntimeError: it is the plugin's.
    """
    try:
        if is_async(function):
            return await function(*arguments, **keywords)
        result = await run_in_thread(partial(function, *arguments, **keywords))
        return await result if inspect.isawaitable(result) else result
    except (Exception, GeneratorExit):  # the latter closes this coroutine
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("it raised CancelledError") from cancelled
    except BaseException as stop:
        raise RuntimeError(f"it raised {error_text(stop)}") from stop


async def run_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a blocking function in a daemon thread that has nothing else to do.

    Cancelling abandons the thread. One that never returns takes no slot from others and does not keep the process
    alive, as a thread of a pool would.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function, *arguments)
        except (StopIteration, GeneratorExit) as stop:  # the first a future cannot carry
            error = RuntimeError(f"it raised {error_text(stop)}")
        except BaseException as caught:  # noqa: BLE001 - raised again where the call is awaited
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    _idle_thread().jobs.put(work)
    return await future


class _Thread(threading.Thread):
    """Does one job after another; between two of them it waits among the idle."""

    def __init__(self) -> None:
        super().__init__(name="plugin calls", daemon=True)
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            self.jobs.get()()
            if len(_IDLE) >= _KEPT:
                return
            _IDLE.append(self)


_KEPT = 64
_IDLE: deque[_Thread] = deque()
"""Threads are kept because starting one costs more than most calls."""
os.register_at_fork(after_in_child=_IDLE.clear)


def _idle_thread() -> _Thread:
    try:
        return _IDLE.pop()
    except IndexError:
        return _Thread()
