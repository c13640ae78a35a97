"""The time that an episode may take; it stands still while there is no engine to take it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@dataclass(eq=False)
class _Clock:
    """The scope of an episode, how many blocks have stopped it, and the seconds that were left at the first of them."""

    scope: anyio.CancelScope
    stops: int = 0
    left: float = 0.0

    def stop(self) -> None:
        if not self.stops:
            self.left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = float("inf")
        self.stops += 1

    def go_on(self) -> None:
        self.stops -= 1
        if not self.stops:
            self.scope.deadline = anyio.current_time() + self.left


_running: ContextVar[_Clock | None] = ContextVar("episode", default=None)


@contextmanager
def episode_clock(seconds: float) -> Iterator[None]:
    """Leave the block after ``seconds``, those of :func:`clock_stopped` inside it not counted."""
    with anyio.move_on_after(seconds) as scope:
        token = _running.set(_Clock(scope))
        try:
            yield
        finally:
            _running.reset(token)


def clock_of_task() -> Callable[[], AbstractContextManager[None]]:
    """Makes blocks of other tasks, such as a server's, count for the episode of this one, if any."""
    clock = _running.get()

    @contextmanager
    def counted() -> Iterator[None]:
        token = _running.set(clock)
        try:
            yield
        finally:
            _running.reset(token)

    return counted


@contextmanager
def clock_stopped() -> Iterator[None]:
    """A time that does not count for the episode that is run in this task, if any; such blocks may overlap."""
    clock = _running.get()
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()
