"""Room in POSIX shared memory, and what to say where there is none."""

from __future__ import annotations

import os
from pathlib import Path

from miles_core.api import WeightSyncError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory, not a place for temporary files


def reserve(name: str, size: int) -> None:
    """Have the kernel find the pages now: a write to a full /dev/shm would kill the process with SIGBUS.

    Raises:
        OSError: if there are none.
    """
    descriptor = os.open(SHARED_MEMORY / name, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def no_room(transport: str, nbytes: int, error: Exception) -> WeightSyncError:
    """The error of a transport that needs so many bytes."""
    return WeightSyncError(
        f"the {transport} transport needs {nbytes} bytes of shared memory in {SHARED_MEMORY}: {error}",
        remedy=f"Enlarge {SHARED_MEMORY} (docker run --shm-size=...), mount it if it is absent, or lower "
        "[weights] bucket_bytes.",
    )
