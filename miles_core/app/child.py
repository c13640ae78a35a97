"""The child's side of a child process: says when it is ready, says why it could not start, dies with its parent."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_FD = "MILES_READY_FD"


def is_child() -> bool:
    """Whether a miles process started this one."""
    return READY_FD in os.environ


@contextmanager
def child_process() -> Iterator[None]:
    """Run a child's main: exit when standard input closes, and hand a start-up error to the parent.

    Without a parent that waits (``miles serve`` typed by a person) nothing is changed.
    """
    if not is_child():
        yield
        return
    threading.Thread(target=_exit_with_parent, name="lifeline", daemon=True).start()
    try:
        yield
    except MilesError as error:
        report({"error": error.message, "remedy": error.remedy})
        raise


def report(message: dict[str, Any]) -> None:
    """Write the line that the parent waits for; later calls do nothing."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "w") as file:
            file.write(json.dumps(message) + "\n")


def report_progress(text: str) -> None:
    """Tell the parent what the start is at; nothing without a parent, or after the report."""
    descriptor = os.environ.get(READY_FD)
    if descriptor is not None:
        os.write(int(descriptor), json.dumps({"progress": text}).encode() + b"\n")


def _exit_with_parent() -> None:
    """Only the parent holds the other end of standard input: its end means that the parent is gone, however it went."""
    while os.read(0, 4096):
        pass
    os._exit(0)
