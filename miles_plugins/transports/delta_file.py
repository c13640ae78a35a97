"""The file that carries one bucket: a header that says all about it, and a body, under one checksum.

The header is, in little-endian::

    magic              8 bytes   "milesWD" and the version of the format
    encoding           uint8     0 full: the body is the bucket; 1 xor, 2 overwrite: changes against base
    width              uint8     bytes of a word, of which changes are counted
    bucket             uint32    its index
    stream             uint32    the number of its stream
    placements         16 bytes  xxh3-128 of its placements as JSON
    base               int64     the version that the changes are against; -1 with encoding full
    nbytes             uint64    of the bucket
    body               uint64    bytes of the body
    result             16 bytes  xxh3-128 of the bucket
    checksum           16 bytes  xxh3-128 of the fields above and the body
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from miles_core.api import WeightSyncError
from miles_plugins.transports.delta_codec import WIDTHS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from miles_core.api import Bucket

FULL, XOR, OVERWRITE = 0, 1, 2
NO_BASE = -1
_MAGIC = b"milesWD\x01"
_FIELDS = struct.Struct("<8sBBII16sqQQ16s")
_SIZE = _FIELDS.size + 16


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says beside its bucket: how to read the body, and the xxh3-128 that comes out."""

    encoding: int
    width: int
    base: int
    result: bytes


def fingerprint(bucket: Bucket) -> bytes:
    """16 bytes that two buckets share only if the same boxes lie in them in the same order."""
    text = json.dumps([placement.to_json() for placement in bucket.placements])
    return xxhash.xxh3_128_digest(text.encode())


def write_file(path: Path, bucket: Bucket, head: Head, body: Sequence[bytes | memoryview]) -> int:
    """Write a new file and return its size; its room is reserved first: a full disk leaves none that looks whole.

    Raises:
        OSError: if there is no room, or the file exists.
    """
    nbytes = sum(len(part) for part in body)
    fields = _FIELDS.pack(
        _MAGIC, head.encoding, head.width, bucket.index, bucket.stream, fingerprint(bucket),
        head.base, bucket.nbytes, nbytes, head.result,
    )  # fmt: skip
    checksum = _checksum(fields, *body)
    with path.open("xb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, _SIZE + nbytes)
        for part in (fields, checksum, *body):
            left = memoryview(part)
            while left:
                left = left[file.write(left) :]
    return _SIZE + nbytes


def read_file(path: Path, bucket: Bucket) -> tuple[Head, bytearray]:
    """The head and the body.

    Raises:
        WeightSyncError: if the file is none of ours, holds another bucket, or is cut short or damaged.
        OSError: if it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        front = file.read(_SIZE)
        if len(front) != _SIZE:
            raise WeightSyncError(f"{path} must have at least {_SIZE} bytes; it has {size}")
        fields = front[: _FIELDS.size]
        head, nbytes = _parse(path, fields, bucket)
        if size != _SIZE + nbytes:
            raise WeightSyncError(f"{path} must have {_SIZE + nbytes} bytes by its header; it has {size}")
        body = _read(file, nbytes)
    if _checksum(fields, body) != front[_FIELDS.size :]:
        raise WeightSyncError(f"{path} is damaged: its checksum does not fit")
    return head, body


def _parse(path: Path, fields: bytes, bucket: Bucket) -> tuple[Head, int]:
    magic, encoding, width, index, stream, placements, base, nbytes, body, result = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise WeightSyncError(f"{path} must begin with {_MAGIC!r}; it begins with {magic!r}")
    if (index, stream, nbytes, placements) != (bucket.index, bucket.stream, bucket.nbytes, fingerprint(bucket)):
        raise WeightSyncError(
            f"{path} must hold bucket {bucket.index} of stream {bucket.stream} with {bucket.nbytes} bytes and its "
            f"placements; it holds bucket {index} of stream {stream} with {nbytes} bytes"
        )
    fits = (body == nbytes and base == NO_BASE) if encoding == FULL else (body < nbytes and base > NO_BASE)
    if encoding not in (FULL, XOR, OVERWRITE) or width not in WIDTHS or not fits:
        raise WeightSyncError(
            f"{path} has a header that cannot be: encoding {encoding}, words of {width} bytes, base {base}, {body} "
            f"bytes for {nbytes}"
        )
    return Head(encoding, width, base, result), body


def _read(file: BinaryIO, nbytes: int) -> bytearray:
    body = bytearray(nbytes)
    left = memoryview(body)
    while left and (count := file.readinto(left)):  # type: ignore[attr-defined]  # raw files have it
        left = left[count:]
    return body


def _checksum(*parts: bytes | bytearray | memoryview) -> bytes:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
