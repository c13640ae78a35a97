"""Ctrl-C and SIGTERM: each signal is answered more firmly than the one before, the last one at once."""

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
def on_interrupt(*actions: Callable[[], str]) -> Iterator[None]:
    """Call the n-th action at the n-th signal and show what it says; after the last, exit with 130.

    The exit comes even if a plugin blocks the event loop: plain handlers, since those of an event loop run only while
    the loop does. They still need the main thread to run Python, or to sleep in a system call that the signal ends; the
    kernel may hand the second of two signals in the same instant to another thread, which ends no such call.
    Children notice the exit by themselves.
    """
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        del number, frame
        received += 1
        if received > len(actions):
            _tell("ending at once")
            os._exit(130)
        _tell(actions[received - 1]())

    before = [signal.signal(number, handle) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _tell(text: str) -> None:
    """Not through a lock that the interrupted code may hold."""
    os.write(2, f"\ninterrupted: {text}\n".encode())
