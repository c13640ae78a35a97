"""Ctrl-C and SIGTERM: the first ends a run in order, the second at once."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_interrupt(first: Callable[[], object]) -> Iterator[None]:
    """Call ``first`` at the first signal; at the second, exit with 130 even if a plugin blocks the event loop.

    Plain handlers, since those of an event loop run only while the loop does. Children notice the exit by themselves.
    """
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        del number, frame
        received += 1
        if received > 1:
            os.write(2, b"\ninterrupted again: ending at once\n")
            os._exit(130)
        first()

    before = [signal.signal(number, handle) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
