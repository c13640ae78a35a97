"""A bucket as a safetensors file: its boxes by their labels, its bytes verbatim behind the header."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import xxhash

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from miles_core.types import Bucket

DTYPES = {
    "bfloat16": "BF16", "bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int16": "I16", "int32": "I32", "int64": "I64",
    "int8": "I8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "uint8": "U8",
}  # fmt: skip
"""What safetensors calls torch's types."""

_CHUNK = 1 << 22


def write_bucket(path: Path, bucket: Bucket, payload: memoryview) -> None:
    """Write a new file; its room is reserved first, so that a full disk leaves no file that looks whole.

    Raises:
        WeightSyncError: if the payload has not the bucket's size, or safetensors has no name for a type.
        OSError: if there is no room, or the file exists.
    """
    if payload.nbytes != bucket.nbytes:
        raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
    header = _header(bucket)
    with path.open("xb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, len(header) + bucket.nbytes)
        for part in (memoryview(header), payload.cast("B")):
            while part:
                part = part[file.write(part) :]


def read_bucket(path: Path, bucket: Bucket) -> bytearray:
    """The bucket's bytes, a copy: a mapping would kill the process if the file were cut meanwhile.

    Raises:
        WeightSyncError: if the file holds another bucket, or is cut short.
        OSError: if it cannot be read.
    """
    data = bytearray(bucket.nbytes)
    with path.open("rb", buffering=0) as file:
        _skip_header(file, path, bucket)
        left = memoryview(data)
        while left and (count := file.readinto(left)):
            left = left[count:]
    return data


def bucket_checksums(path: Path, bucket: Bucket) -> tuple[str, ...]:
    """The xxh3-128, in hex, of the bytes of each box in the file.

    Raises:
        WeightSyncError: if the file holds another bucket, or is cut short.
        OSError: if it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        _skip_header(file, path, bucket)
        return tuple(_checksum(file, placement.nbytes) for placement in bucket.placements)


def _checksum(file: BinaryIO, nbytes: int) -> str:
    digest = xxhash.xxh3_128()
    while nbytes and (chunk := file.read(min(nbytes, _CHUNK))):
        digest.update(chunk)
        nbytes -= len(chunk)
    return digest.hexdigest()


def _skip_header(file: BinaryIO, path: Path, bucket: Bucket) -> None:
    """Place the file at the payload, having compared all that comes before it, and the size."""
    header = _header(bucket)
    size = os.fstat(file.fileno()).st_size
    if size != len(header) + bucket.nbytes:
        raise WeightSyncError(
            f"{path} must have {len(header) + bucket.nbytes} bytes to hold bucket {bucket.index}; it has {size}"
        )
    if file.read(len(header)) != header:
        raise WeightSyncError(f"{path} does not begin with the header of bucket {bucket.index}")


def _header(bucket: Bucket) -> bytes:
    """Length and JSON of the header, padded so that the payload begins at a multiple of 8."""
    entries: dict[str, object] = {}
    offset = 0
    for placement in bucket.placements:
        end = offset + placement.nbytes
        dtype = placement.tensor.dtype
        if dtype not in DTYPES:
            raise WeightSyncError(
                f"tensor {placement.label} of type {dtype} cannot be written to a safetensors file; it has "
                f"{', '.join(sorted(DTYPES))}",
                remedy="Use another [weights] transport for this model.",
            )
        entries[placement.label] = {"dtype": DTYPES[dtype], "shape": placement.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
