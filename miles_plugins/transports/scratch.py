"""A folder for a short while, which the next one removes if its process was killed meanwhile."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"miles-weights-disk-[0-9a-f]{16}")


class Scratch:
    """A fresh folder ``miles-weights-disk-<16 hex digits>`` in ``base``, which is made if need be.

    Until it is closed it holds a lock on the file of that name with the suffix ``.lock``: folders of this user whose
    lock is free were left by processes that were killed, and are removed.

    Raises:
        OSError: if there is no folder to be had.
    """

    def __init__(self, base: Path) -> None:
        base.mkdir(parents=True, exist_ok=True)
        _remove_dead(base)
        self.path, lock = _claim(base)
        self.path.mkdir(mode=0o700)
        self._close = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove it with all that it holds; the interpreter does so at its end."""
        self._close()


def _claim(base: Path) -> tuple[Path, int]:
    while True:
        path = base / f"miles-weights-disk-{secrets.token_hex(8)}"
        lock = _lock(_lock_of(path), os.O_CREAT | os.O_EXCL)
        if lock is not None:
            return path, lock


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


def _lock(path: Path, flags: int) -> int | None:
    """A descriptor that holds the lock, or ``None`` if another process has it or has just removed the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    os.close(descriptor)
    return None


def _remove_dead(base: Path) -> None:
    for path in base.glob("miles-weights-disk-*.lock"):
        if _NAME.fullmatch(path.stem) and _is_ours(path) and (lock := _lock(path, 0)) is not None:
            _remove(path.with_suffix(""), lock)


def _is_ours(path: Path) -> bool:
    """Whether it is this user's; that of another run may go at any moment."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _lock_of(path).unlink(missing_ok=True)
    os.close(lock)
