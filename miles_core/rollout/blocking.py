"""An episode for functions that run in a thread: its methods block there, and run on the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import wraps
from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from miles_core.rollout.handle import Handle


class BlockingHandle:
    """A :class:`Handle` whose coroutine methods are plain ones; make it on the event loop, use it in a thread."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: set[Future[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._handle, name)
        return self._blocking(value) if inspect.iscoroutinefunction(value) else value

    def cancel(self) -> None:
        """Cancel what a thread still waits for."""
        for future in tuple(self._waiting):
            future.cancel()

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == self._thread:
                raise RolloutError(
                    f"{method.__name__}() would block the event loop", remedy="Write the function as `async def`."
                )
            future = asyncio.run_coroutine_threadsafe(method(*arguments, **options), self._loop)
            self._waiting.add(future)
            try:
                return future.result()
            finally:
                self._waiting.discard(future)

        return run
