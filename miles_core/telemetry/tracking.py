"""Several trackers at once, none of which can stop, block or outlive a run."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from miles_core.lib.error_text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from miles_core.kinds.trackers import Tracker

    Row = tuple[int, dict[str, float]]

FAILURES_IN_A_ROW = 3
"""A tracker that fails so often without a success between is left out of the rest of the run."""


class Trackers:
    """Hands the metrics of every step to each tracker, in order, in a thread of its own.

    ``warn`` is told, from any of these threads, what goes wrong: the first failure of a tracker, that it is left out,
    that steps are dropped because ``queue_size`` of them wait already, and that it does not come to an end.
    """

    def __init__(
        self,
        trackers: Sequence[tuple[str, Tracker]],
        warn: Callable[[str], None],
        *,
        queue_size: int = 1000,
        close_timeout: float = 10.0,
    ) -> None:
        self._workers = [_Worker(name, tracker, warn, queue_size) for name, tracker in _named_apart(trackers)]
        self._close_timeout = close_timeout
        self._closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; never blocks and never raises. After ``close`` it does nothing."""
        if not self._closed:
            for worker in self._workers:
                worker.put((step, dict(metrics)))

    def close(self) -> None:
        """Let all trackers record what waits and close, for ``close_timeout`` seconds in all; never raises."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.end()
        deadline = time.monotonic() + self._close_timeout
        for worker in self._workers:
            worker.join(deadline)

    @property
    def failures(self) -> dict[str, int]:
        """Failed calls by tracker."""
        return {worker.name: worker.failures for worker in self._workers}

    @property
    def dropped(self) -> dict[str, int]:
        """Steps by tracker that were never handed to it, because its queue was full."""
        return {worker.name: worker.dropped for worker in self._workers}

    @property
    def stuck(self) -> tuple[str, ...]:
        """Trackers that ``close`` gave up on: they may hold up the end of the process by hooks of their own."""
        return tuple(worker.name for worker in self._workers if self._closed and worker.running)


def _named_apart(trackers: Sequence[tuple[str, Tracker]]) -> list[tuple[str, Tracker]]:
    """Give the second tracker of a name a number: counts are kept by name."""
    seen: Counter[str] = Counter()
    named = []
    for name, tracker in trackers:
        seen[name] += 1
        named.append((name if seen[name] == 1 else f"{name} ({seen[name]})", tracker))
    return named


class _Worker:
    """One tracker and its thread, which is a daemon: a call that never returns must not keep the process."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None], queue_size: int) -> None:
        self.name = name
        self.failures = 0
        self.dropped = 0
        self._tracker = tracker
        self._warn_person = warn
        self._queue: SimpleQueue[Row | None] = SimpleQueue()
        self._queue_size = queue_size
        self._thread = Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def put(self, row: Row) -> None:
        """Queue a step, or count it as dropped; one thread calls this, so the size cannot grow in between."""
        if not self.running:
            return
        if self._queue.qsize() < self._queue_size:
            self._queue.put(row)
            return
        self.dropped += 1
        if self.dropped == 1:
            self._warn(f"it is behind by {self._queue_size} steps; steps are dropped until it catches up")

    def end(self) -> None:
        self._queue.put(None)

    def join(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self.running:
            self._warn(f"it did not come to an end in time; up to {self._queue.qsize()} steps may be missing from it")
        elif self.dropped:
            self._warn(f"{self.dropped} steps were dropped")

    def _work(self) -> None:
        in_a_row = 0
        while (row := self._queue.get()) is not None:
            in_a_row = 0 if self._call("log", *row) else in_a_row + 1
            if in_a_row == FAILURES_IN_A_ROW:
                self._warn(f"it failed {in_a_row} times in a row and is left out of the rest of the run")
                break
        self._call("close")

    def _call(self, method: str, *arguments: object) -> bool:
        """Whether a call into the plugin succeeded."""
        try:
            getattr(self._tracker, method)(*arguments)
        except BaseException as error:  # noqa: BLE001 - a plugin's SystemExit would end the thread without a word
            self.failures += 1
            if self.failures == 1:
                self._warn(f"{method}() raised {error_text(error)}; further failures are only counted")
            return False
        return True

    def _warn(self, message: str) -> None:
        with suppress(Exception):  # a broken terminal must not end the run either
            self._warn_person(f"tracker {self.name}: {message}")
