"""The ``memory`` transport: shared-memory segments, for trainer and engines on one host."""

from __future__ import annotations

import mmap
import os
import re
import secrets
from collections import OrderedDict
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError
from miles_plugins.transports.shared_memory import SHARED_MEMORY, no_room, reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.api import Bucket, PluginContext

KEPT = 4
"""Segments that a trainer keeps for later buckets, and an engine mapped: fresh pages cost more than a copy."""

_NAME = re.compile(r"miles-weights-[0-9a-f]{16}")


class Memory:
    """A delivery is ``{"segment": name, "nbytes": n, "size": of the segment}``; the trainer owns the segments.

    A segment that is released serves later buckets. Should the trainer die, Python's resource tracker removes them.
    """

    reach = "host"

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""
        self._free: list[SharedMemory] = []
        self._lent: SharedMemory | None = None
        self._sent: dict[str, SharedMemory] = {}
        self._maps: OrderedDict[str, mmap.mmap] = OrderedDict()

    def buffer(self, bucket: Bucket) -> memoryview:
        """A segment to pack the bucket into.

        Raises:
            WeightSyncError: if shared memory is full or absent.
        """
        self._take_back()
        self._lent = self._segment(bucket.nbytes)
        assert self._lent.buf is not None
        return self._lent.buf[: bucket.nbytes]

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Offer the segment that was lent for this bucket, or a copy of another payload.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or shared memory is full or absent.
        """
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        if self._lent is None or self._lent.buf is None or payload.obj is not self._lent.buf.obj:
            self.buffer(bucket)[:] = payload.cast("B")
        segment, self._lent = self._lent, None
        assert segment is not None
        self._sent[segment.name] = segment
        return {"segment": segment.name, "nbytes": bucket.nbytes, "size": segment.size}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Keep the delivery's segment for a later bucket.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        segment = self._sent.pop(str(delivery.get("segment")), None)
        if segment is None:
            raise WeightSyncError(f"this transport holds no segment {delivery.get('segment')!r} to release")
        self._keep(segment)

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: Callable[[], bytearray]) -> memoryview:
        """The segment's bytes; what is only read stays the trainer's.

        Raises:
            WeightSyncError: if the segment is foreign, absent or of another size.
        """
        name, size = delivery.get("segment"), delivery.get("size")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WeightSyncError(f"a delivery must name a segment miles-weights-<16 hex digits>; got {name!r}")
        if delivery.get("nbytes") != bucket.nbytes or not isinstance(size, int) or size < max(bucket.nbytes, 1):
            raise WeightSyncError(
                f"bucket {bucket.index} has {bucket.nbytes} bytes; its delivery says {delivery.get('nbytes')!r} of "
                f"{size!r}"
            )
        mapped = self._maps.pop(name, None) or _map(name, bucket, size)
        self._maps[name] = mapped
        while len(self._maps) > KEPT:
            self._maps.popitem(last=False)
        return memoryview(mapped)[: bucket.nbytes]

    def close(self) -> None:
        """Remove every segment that is left."""
        self._take_back()
        self._maps.clear()
        for segment in (*self._free, *self._sent.values()):
            _remove(segment)
        self._free.clear()
        self._sent.clear()

    def _segment(self, nbytes: int) -> SharedMemory:
        for segment in self._free:
            if nbytes <= segment.size:
                self._free.remove(segment)
                return segment
        while self._free:  # none of them fits: room for one that does
            _remove(self._free.pop())
        return _create(nbytes)

    def _take_back(self) -> None:
        if self._lent is not None:
            self._keep(self._lent)
            self._lent = None

    def _keep(self, segment: SharedMemory) -> None:
        self._free.append(segment)
        if len(self._free) > KEPT:
            _remove(self._free.pop(0))


def _create(nbytes: int) -> SharedMemory:
    size = max(nbytes, 1)  # a segment cannot be empty
    try:
        segment = SharedMemory(f"miles-weights-{secrets.token_hex(8)}", create=True, size=size)
    except OSError as error:
        raise no_room("memory", nbytes, error) from error
    try:
        reserve(segment.name, size)
    except OSError as error:
        _remove(segment)
        raise no_room("memory", nbytes, error) from error
    return segment


def _remove(segment: SharedMemory) -> None:
    with suppress(BufferError):  # a payload that failed is still looked at
        segment.close()
    segment.unlink()


def _map(name: str, bucket: Bucket, size: int) -> mmap.mmap:
    # SharedMemory(name) would make Python 3.11's resource tracker unlink the trainer's segment when this process ends.
    try:
        descriptor = os.open(SHARED_MEMORY / name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise WeightSyncError(
            f"segment {name} of bucket {bucket.index} cannot be opened: {error}",
            remedy="Run trainer and engines on one host with one /dev/shm, or set another [weights] use.",
        ) from error
    try:
        found = os.fstat(descriptor).st_size
        if found != size:
            raise WeightSyncError(f"segment {name} of bucket {bucket.index} must have {size} bytes; it has {found}")
        # writable, since torch takes no read-only memory without a copy; no one writes to it
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE)
    finally:
        os.close(descriptor)
