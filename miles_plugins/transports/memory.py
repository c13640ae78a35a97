"""The ``memory`` transport: one shared-memory segment per bucket, for trainer and engines on one host."""

from __future__ import annotations

import mmap
import os
import re
import secrets
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import Bucket, PluginContext

_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory, not a place for temporary files
_NAME = re.compile(r"miles-weights-[0-9a-f]{16}")


class Memory:
    """A delivery is ``{"segment": name, "nbytes": n}``; the trainer owns the segment until it releases it.

    Should the trainer die, Python's resource tracker removes its segments.
    """

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""
        self._segments: dict[str, SharedMemory] = {}

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Copy the payload into a fresh segment.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or shared memory is full or absent.
        """
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        segment = _create(bucket.nbytes)
        self._segments[segment.name] = segment
        assert segment.buf is not None
        segment.buf[: bucket.nbytes] = payload.cast("B")
        return {"segment": segment.name, "nbytes": bucket.nbytes}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Remove the delivery's segment; receivers that still read it keep their mapping.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        segment = self._segments.pop(str(delivery.get("segment")), None)
        if segment is None:
            raise WeightSyncError(f"this transport holds no segment {delivery.get('segment')!r} to release")
        _remove(segment)

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket) -> memoryview:
        """The segment's bytes, mapped copy-on-write: what the receiver does to them, no one else sees.

        Raises:
            WeightSyncError: if the segment is foreign, absent or of another size.
        """
        name = delivery.get("segment")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WeightSyncError(f"a delivery must name a segment miles-weights-<16 hex digits>; got {name!r}")
        if delivery.get("nbytes") != bucket.nbytes:
            raise WeightSyncError(
                f"bucket {bucket.index} has {bucket.nbytes} bytes; its delivery says {delivery.get('nbytes')!r}"
            )
        return _map(name, bucket)

    def close(self) -> None:
        """Remove every segment that is left."""
        while self._segments:
            _remove(self._segments.popitem()[1])


def _create(nbytes: int) -> SharedMemory:
    size = max(nbytes, 1)  # a segment cannot be empty
    try:
        segment = SharedMemory(f"miles-weights-{secrets.token_hex(8)}", create=True, size=size)
    except OSError as error:
        raise _no_room(nbytes, error) from error
    try:
        _reserve(segment.name, size)
    except OSError as error:
        _remove(segment)
        raise _no_room(nbytes, error) from error
    return segment


def _reserve(name: str, size: int) -> None:
    """Have the kernel find the pages now: a write to a full /dev/shm would kill the process with SIGBUS."""
    descriptor = os.open(_FOLDER / name, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _remove(segment: SharedMemory) -> None:
    segment.close()
    segment.unlink()


def _map(name: str, bucket: Bucket) -> memoryview:
    # SharedMemory(name) would make Python 3.11's resource tracker unlink the trainer's segment when this process ends.
    try:
        descriptor = os.open(_FOLDER / name, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise WeightSyncError(
            f"segment {name} of bucket {bucket.index} cannot be opened: {error}",
            remedy="Run trainer and engines on one host with one /dev/shm, or set another [weights] use.",
        ) from error
    try:
        size = os.fstat(descriptor).st_size
        if size != max(bucket.nbytes, 1):
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; segment {name} holds {size}")
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))[: bucket.nbytes]
    finally:
        os.close(descriptor)


def _no_room(nbytes: int, error: OSError) -> WeightSyncError:
    return WeightSyncError(
        f"the memory transport needs {nbytes} bytes of shared memory in {_FOLDER}: {error}",
        remedy=f"Enlarge {_FOLDER} (docker run --shm-size=...), mount it if it is absent, or lower "
        "[weights] bucket_bytes.",
    )
