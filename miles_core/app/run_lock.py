"""One process per run folder."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however it ends.

    Raises:
        CheckpointError: naming the process that holds it, or if the folder is not writable.
    """
    with _opened(run_dir / "run.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise CheckpointError(
                f"another process works in {run_dir}: {file.read().strip() or 'unknown'}",
                remedy="End it first, or start a run of its own.",
            ) from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot write to the run folder {path.parent}: {error.strerror}", remedy="Make it writable, or copy it."
        ) from error


def is_running(run_dir: Path) -> bool:
    """Whether a process holds the folder now."""
    try:
        with (run_dir / "run.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
