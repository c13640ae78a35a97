"""The ``disk_delta`` transport: files with what changed since the version that the engines hold."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash
from pydantic import Field

from miles_core.api import WeightSyncError
from miles_plugins.transports.delta_codec import WIDTHS, Bytes, decode, encode
from miles_plugins.transports.delta_file import FULL, NO_BASE, OVERWRITE, XOR, Head, fingerprint, read_file, write_file
from miles_plugins.transports.shared_folder import FolderConfig, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from miles_core.api import Bucket, Opening, Placement, PluginContext


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last payload of a bucket, and what it was sent as."""

    version: int
    placements: tuple[Placement, ...]
    data: Bytes


class DiskDelta:
    """A delivery is ``{"file": path, "nbytes": n}``, and ``"base": version`` where the file holds changes only.

    The trainer's end keeps the bytes that it sent last: one copy of the model, per stream, in host memory. A bucket
    goes as changes if every receiver of its stream holds the version of that copy, and changes are smaller. Else it
    goes whole, without compression: zstd takes a third off bf16 weights, which pays only where the folder is slower
    than 0.3 GB/s.
    """

    reach = "folder"

    class Config(FolderConfig):
        """Options of ``[weights] use = "disk_delta"``."""

        encoding: Literal["xor", "overwrite"] = Field(
            "xor", description="changed elements as old ^ new, which is smaller, or as their new values"
        )
        level: int = Field(1, ge=1, le=19, description="zstd's level; higher ones are slower and hardly smaller")

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._xor = config.encoding == "xor"
        self._level = config.level
        self._files = SharedFolder(config.dir, context, suffix="delta", whole=False)
        self._opening: Opening | None = None
        self._sent: dict[tuple[int, bytes], _Sent] = {}
        self._bases: set[tuple[int, bytes]] = set()
        self._written = Counter[str]()

    def expect(self, nbytes: int) -> None:
        """Look for a place with room for so many bytes: the whole model."""
        self._files.expect(nbytes)

    def open(self, opening: Opening) -> None:
        """Begin an update, and forget the bytes that no changes can be based on in it."""
        self._opening = opening
        self._written.clear()
        known = {
            number: (set(target.bases), frozenset(target.placements)) for number, target in enumerate(opening.streams)
        }
        for key, sent in list(self._sent.items()):
            bases, placements = known.get(key[0], (set(), frozenset()))
            if bases != {sent.version} or not placements.issuperset(sent.placements):
                del self._sent[key]
        self._bases = set(self._sent)

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Write the bucket's changes into a file, or all of it if need be. Without :meth:`open` before: all of it.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or there is no room.
        """
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        data = np.frombuffer(payload, np.uint8)
        key = (bucket.stream, fingerprint(bucket))
        sent = self._sent.get(key)
        head, body = self._coded(bucket, data, sent if key in self._bases else None)

        def write(path: Path) -> None:
            self._written["bytes"] += write_file(path, bucket, head, body)

        file = self._files.write(bucket, write)
        self._written["payload"] += bucket.nbytes
        self._keep(key, bucket, data, sent)
        return {"file": file, "nbytes": bucket.nbytes} | ({} if head.base == NO_BASE else {"base": head.base})

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Remove the delivery's file.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        self._files.release(delivery)

    def path(self) -> str:
        """How many bytes the files of the last update took."""
        return f"files, {self._written['bytes']} bytes for {self._written['payload']}"

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: Callable[[], bytearray]) -> bytearray:
        """The bytes in the file, or what they make of those held.

        Raises:
            WeightSyncError: if the file is foreign, absent, cut, damaged or of another bucket, or the bytes held are
                not those of its base.
        """
        path = self._files.path_of(delivery)
        try:
            head, body = read_file(path, bucket)
        except OSError as error:
            raise WeightSyncError(
                f"bucket {bucket.index} cannot be read: {error}",
                remedy="Set [weights] dir to a folder that trainer and engines share.",
            ) from error
        if delivery.get("base", NO_BASE) != head.base:
            raise WeightSyncError(f"{path} is based on version {head.base}; its delivery says {delivery.get('base')!r}")
        return body if head.encoding == FULL else _applied(path, head, body, held())

    def close(self) -> None:
        """Remove every file that is left, and forget what was sent."""
        self._files.close()
        self._sent.clear()
        self._bases.clear()

    def _coded(self, bucket: Bucket, data: Bytes, base: _Sent | None) -> tuple[Head, list[bytes | memoryview]]:
        width, result = _width(bucket), xxhash.xxh3_128_digest(data.data)
        if base is not None:
            body = encode(base.data, data, width=width, xor=self._xor, level=self._level)
            if sum(map(len, body)) < bucket.nbytes:
                return Head(XOR if self._xor else OVERWRITE, width, base.version, result), list(body)
        return Head(FULL, width, NO_BASE, result), [data.data]

    def _keep(self, key: tuple[int, bytes], bucket: Bucket, data: Bytes, sent: _Sent | None) -> None:
        if self._opening is None:
            return
        copy = np.empty_like(data) if sent is None else sent.data
        np.copyto(copy, data)
        self._sent[key] = _Sent(self._opening.version, bucket.placements, copy)
        self._bases.discard(key)


def _applied(path: Path, head: Head, body: bytearray, held: bytearray) -> bytearray:
    try:
        decode(memoryview(body), np.frombuffer(held, np.uint8), width=head.width, xor=head.encoding == XOR)
    except ValueError as error:
        raise WeightSyncError(f"{path} cannot be decoded: {error}", remedy="Send a whole update.") from error
    if xxhash.xxh3_128_digest(held) != head.result:
        raise WeightSyncError(
            f"{path} makes other bytes of what this engine holds than the trainer sent: they are not those of version "
            f"{head.base}",
            remedy="Send a whole update to this engine.",
        )
    return held


def _width(bucket: Bucket) -> int:
    """Bytes of an element of the type that most of the bucket's bytes have."""
    share = Counter[int]()
    for placement in bucket.placements:
        share[placement.nbytes // max(1, math.prod(placement.shape))] += placement.nbytes
    width = share.most_common(1)[0][0] if share else 1
    return width if width in WIDTHS else 1
