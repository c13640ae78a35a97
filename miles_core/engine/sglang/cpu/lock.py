"""One set-up at a time; standard library only."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_POLL_SECONDS = 0.2


@contextmanager
def locked(path: Path, *, seconds: float, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold a lock file and yield its descriptor; ``waiting`` is called once if another process holds it.

    The system frees the lock when this process and all that inherited the descriptor have ended, however they ended.

    Raises:
        EngineError: if the file cannot be made, or the other process keeps it for so many ``seconds``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error}", remedy="Set XDG_CACHE_HOME to a folder of yours.") from None
    with file:
        _acquire(file.fileno(), path, seconds, waiting)
        yield file.fileno()


def _acquire(descriptor: int, path: Path, seconds: float, waiting: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    told = False
    while not _try(descriptor):
        if time.monotonic() > deadline:
            raise EngineError(
                f"another process has held {path} for {seconds / 60:.0f} minutes",
                remedy="Let it end, or end it, and run the command again.",
            )
        if not told:
            waiting()
            told = True
        time.sleep(_POLL_SECONDS)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
