"""The time that an episode may take; it stands still while there is no engine to take it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator

_running: ContextVar[anyio.CancelScope | None] = ContextVar("episode", default=None)


@contextmanager
def episode_clock(seconds: float) -> Iterator[None]:
    """Leave the block after ``seconds``, those of :func:`clock_stopped` inside it not counted."""
    with anyio.move_on_after(seconds) as scope:
        token = _running.set(scope)
        try:
            yield
        finally:
            _running.reset(token)


@contextmanager
def clock_stopped() -> Iterator[None]:
    """A time that does not count for the episode that is run in this task, if any."""
    scope = _running.get()
    if scope is None:
        yield
        return
    left = scope.deadline - anyio.current_time()
    scope.deadline = float("inf")
    try:
        yield
    finally:
        scope.deadline = anyio.current_time() + left
