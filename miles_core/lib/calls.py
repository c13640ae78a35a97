"""Calls into plugin code that may be sync or async, may block, and may never return."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from contextlib import suppress
from functools import partial
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
    """Run a blocking function in a daemon thread of its own.

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

    threading.Thread(target=work, name=f"plugin {getattr(function, '__name__', '')}", daemon=True).start()
    return await future
