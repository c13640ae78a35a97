"""The calls into one plugin: off the event loop, bounded, timed and counted."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.lib.calls import call
from miles_core.lib.signatures import is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = logging.getLogger("miles.plugins")

THREADS = 32
"""Blocking calls into one plugin at once: more would starve the event loop where they compute."""

LEFT_BEHIND = 256
"""Calls that were given up and still run, beside those that are waited for; then the plugin is called no more."""

QUIET_SECONDS = 600.0


class CallTimeoutError(Exception):
    """A call into a plugin took longer than it may."""


class ItemError(Exception):
    """A call on one of several items failed; ``index`` is the item's, the cause what was raised."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class PluginCalls:
    """Calls one plugin; ``title`` is how errors and warnings name it, ``name`` how metrics do.

    At most ``threads`` blocking calls run at once, and the seconds of a call's limit count from when it runs. One that
    is given up makes room for others, although its thread goes on. A call of more than ``slow_call`` seconds is warned
    about while it runs, with at most one warning in ten minutes.
    """

    def __init__(self, name: str, title: str | None = None, *, slow_call: float = 10.0, threads: int = THREADS) -> None:
        self.name = name
        self.title = title or name
        self._slow_call = slow_call
        self._slots = anyio.Semaphore(threads)
        self._most_running = threads + LEFT_BEHIND
        self._running = 0
        self._lock = threading.Lock()
        self._since: Counter[str] = Counter()
        self._seconds = 0.0
        self._slow = 0
        self._warnings = 0
        self._quiet_until = 0.0

    @property
    def running(self) -> int:
        """Blocking calls that run, those that were given up among them."""
        return self._running

    async def __call__(
        self,
        method: str,
        function: Callable[..., Any],
        *arguments: Any,
        limit: float | None = None,
        **keywords: Any,
    ) -> Any:
        """What ``function`` returns: a coroutine function is awaited, a plain one runs in a thread.

        Raises:
            CallTimeoutError: if it takes longer than ``limit`` seconds.
            RuntimeError: if it raises what is no Exception, or too many calls of it were given up and still run.
            Exception: whatever else it raises.
        """
        called = partial(function, *arguments, **keywords)
        if is_async(function):
            return await self._timed(method, called, limit)
        async with self._slots:
            return await self._timed(method, partial(self._in_thread, called), limit)

    async def each(self, method: str, function: Callable[[Any], Any], items: Sequence[Any], limit: float) -> list[Any]:
        """What ``function`` returns for each item, all in one thread if it is a plain one, else side by side.

        ``limit`` is that of one item.

        Raises:
            ItemError: for the first item that took too long, or whose call raised.
        """
        if is_async(function):
            return await self._side_by_side(method, function, items, limit)
        results: list[Any] = []
        loop, scope = asyncio.get_running_loop(), anyio.CancelScope()

        def go_on() -> None:
            scope.deadline = loop.time() + limit  # not anyio's clock, which asks for a task

        def work() -> None:
            for item in items:
                results.append(function(item))
                loop.call_soon_threadsafe(go_on)

        try:
            async with self._slots:
                go_on()
                await self._timed(method, partial(self._in_thread, work), limit, scope)
        except Exception as error:
            raise ItemError(len(results)) from error
        if not any(map(inspect.isawaitable, results)):
            return results
        return await self._side_by_side(method, _result, results, limit)

    async def _side_by_side(
        self,
        method: str,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        limit: float,
    ) -> list[Any]:
        results: list[Any] = [None] * len(items)
        failed: dict[int, Exception] = {}

        async def one(index: int) -> None:
            try:
                results[index] = await self(method, function, items[index], limit=limit)
            except Exception as error:  # noqa: BLE001 - raised below, for the first item that has one
                failed[index] = error

        async with anyio.create_task_group() as tasks:
            for index in range(len(items)):
                tasks.start_soon(one, index)
        if failed:
            raise ItemError(min(failed)) from failed[min(failed)]
        return results

    @contextmanager
    def measured(self, method: str) -> Iterator[None]:
        """Count a call, its seconds and its failure; for calls that are made directly."""
        started = time.perf_counter()
        warned = self._slow
        try:
            yield
        except Exception:
            self._since["failures"] += 1
            raise
        finally:
            seconds = time.perf_counter() - started
            self._since["calls"] += 1
            self._seconds += seconds
            if seconds >= self._slow_call and self._slow == warned:
                self._warn_slow(method, f"took {seconds:.1f} s")

    @contextmanager
    def watched(self, method: str) -> Iterator[None]:
        """Warn of a slow call that is made directly while it runs: it may never return."""
        words = f"has been running for {self._slow_call:g} s"
        timer = threading.Timer(self._slow_call, self._warn_slow, (method, words))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def warn(self, what: str) -> None:
        """Warn the first, the tenth, the hundredth time, ...: what fails in every episode must not fill the screen."""
        self._warnings += 1
        if str(self._warnings).strip("0") == "1":
            often = f" (warning number {self._warnings})" if self._warnings > 1 else ""
            logger.warning("%s: %s%s", self.title, what, often)

    def take_metrics(self) -> dict[str, float]:
        """Seconds, calls and failures since the last time, as ``plugins/<name>/...``; nothing without a call."""
        since, seconds = self._since, self._seconds
        self._since, self._seconds = Counter(), 0.0
        if not since["calls"]:
            return {}
        values = {"seconds": seconds, "calls": float(since["calls"]), "failures": float(since["failures"])}
        return {f"plugins/{self.name}/{key}": value for key, value in values.items()}

    async def _timed(
        self,
        method: str,
        called: Callable[[], Any],
        limit: float | None,
        scope: anyio.CancelScope | None = None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        words = f"has been running for {self._slow_call:g} s"
        slow = loop.call_later(self._slow_call, self._warn_slow, method, words)
        try:
            with self.measured(method):
                with anyio.move_on_after(limit) if scope is None else scope:
                    return await call(called)
                raise CallTimeoutError(f"took longer than {limit or 0:g} s")
        finally:
            slow.cancel()

    def _in_thread(self, called: Callable[[], Any]) -> Any:
        with self._lock:
            if self._running >= self._most_running:
                raise RuntimeError(f"{self._running} earlier calls that were given up are still running")
            self._running += 1
        try:
            return called()
        finally:
            with self._lock:
                self._running -= 1

    def _warn_slow(self, method: str, words: str) -> None:
        self._slow += 1
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + QUIET_SECONDS
        before = f"; {self._slow - 1} slow calls before" if self._slow > 1 else ""
        logger.warning("%s: %s() %s (plugins.slow_call = %g)%s", self.title, method, words, self._slow_call, before)


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class CallLog:
    """The calls into all plugins of a run."""

    def __init__(self, slow_call: float = 10.0) -> None:
        self._slow_call = slow_call
        self._plugins: dict[tuple[str, str], PluginCalls] = {}

    def of(self, name: str, title: str, threads: int = THREADS) -> PluginCalls:
        """The calls into one plugin, always the same object, so that it is warned about once."""
        if (name, title) not in self._plugins:
            self._plugins[name, title] = PluginCalls(name, title, slow_call=self._slow_call, threads=threads)
        return self._plugins[name, title]

    def take_metrics(self) -> dict[str, float]:
        """Seconds, calls and failures of each plugin since the last time; several uses of one plugin are added up."""
        total: dict[str, float] = {}
        for plugin in self._plugins.values():
            for name, value in plugin.take_metrics().items():
                total[name] = total.get(name, 0.0) + value
        return total
