"""What changed between two buffers of one size, compressed; and the way back.

The bytes are taken as words of ``width`` bytes, the size of an element, in frames of 4 MiB that are coded on several
threads. A frame with few changes holds the gaps between changed words and their values, one with many the values of all
words. Values are cut into byte planes, because the high bytes of elements change in other ways than the low ones.

A frame is ``mode: uint8, count: uint32``, then its streams: ``length: uint32`` and a zstd frame of that length. All
numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from miles_plugins.transports.delta_gaps import largest_size, pack_positions, unpack_positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[Any]

WIDTHS = (1, 2, 4, 8)
FRAME = 1 << 22
_SPARSE, _DENSE = 0, 1
_MOST_SPARSE = 0.5  # share of changed words; above it, whole planes take no more room and less time
_THREADS = min(8, len(os.sched_getaffinity(0)))
_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")


def encode(old: Bytes, new: Bytes, *, width: int, xor: bool, level: int) -> list[bytes]:
    """The parts of a body from which :func:`decode` makes ``new`` of ``old``; ``level`` is zstd's.

    Values are ``old ^ new`` if ``xor``, else those of ``new``.
    """

    def frame(start: int) -> bytes:
        part = slice(start, start + FRAME)
        return _encode_frame(_words(old[part], width), _words(new[part], width), xor, level)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(frame, range(0, new.size, FRAME)))


def decode(body: memoryview, data: Bytes, *, width: int, xor: bool) -> None:
    """Make the new bytes of the old ones in ``data``, in place.

    Raises:
        ValueError: if the body is not one that :func:`encode` makes for a buffer of this size; ``data`` is then spoilt.
    """
    frames = list(_split(body, data.size, width))

    def apply(number: int) -> None:
        part = data[number * FRAME : (number + 1) * FRAME]
        words = _words(part, width)
        _decode_frame(frames[number], words, width, xor)
        if part.size % width:
            part[:] = words.view(np.uint8)[: part.size]

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(apply, range(len(frames))):
            pass


def _words(data: Bytes, width: int) -> Words:
    """The bytes as words, sharing memory unless the last word must be filled up with zeros."""
    if missing := -data.size % width:
        data = np.concatenate([data, np.zeros(missing, np.uint8)])
    return data.view(f"<u{width}")


def _encode_frame(old: Words, new: Words, xor: bool, level: int) -> bytes:
    changed = old != new
    count = int(np.count_nonzero(changed))
    parts: list[Bytes] = []
    if count > _MOST_SPARSE * new.size:
        mode, values = _DENSE, old ^ new if xor else new
    else:
        mode, positions = _SPARSE, np.flatnonzero(changed)
        values = old[positions] ^ new[positions] if xor else new[positions]
        parts = [pack_positions(positions)]
    if count:
        parts += [(values >> (8 * plane)).astype(np.uint8) for plane in range(new.itemsize)]
    compressor = zstandard.ZstdCompressor(level=level)
    streams = [compressor.compress(part.data) for part in parts if count]
    return b"".join([_HEAD.pack(mode, count), *(_LENGTH.pack(len(one)) + one for one in streams)])


def _split(body: memoryview, nbytes: int, width: int) -> Iterator[tuple[int, int, Sequence[memoryview]]]:
    """Mode, count and streams of each frame, all of which together are the whole body."""
    at = 0
    for _ in range(0, nbytes, FRAME):
        mode, count = _HEAD.unpack(_take(body, at, _HEAD.size))
        at += _HEAD.size
        streams = []
        for _ in range(width + (mode == _SPARSE) if count else 0):
            (length,) = _LENGTH.unpack(_take(body, at, _LENGTH.size))
            at += _LENGTH.size
            streams.append(_take(body, at, length))
            at += length
        yield mode, count, streams
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes follow the last frame")


def _take(body: memoryview, at: int, count: int) -> memoryview:
    if at + count > len(body):
        raise ValueError(f"a frame ends at byte {at + count} of {len(body)}")
    return body[at : at + count]


def _decode_frame(frame: tuple[int, int, Sequence[memoryview]], words: Words, width: int, xor: bool) -> None:
    mode, count, streams = frame
    if mode not in (_SPARSE, _DENSE) or count > words.size:
        raise ValueError(f"a frame of {words.size} words has mode {mode} and {count} changes")
    if not count:
        return
    where: slice | Words = slice(None)
    if mode == _SPARSE:
        gaps = _inflate(streams[0], range(count, largest_size(count, words.size) + 1))
        where = unpack_positions(gaps, count, words.size)
    planes = streams[mode == _SPARSE :]
    values = _join([_inflate(plane, (count if mode == _SPARSE else words.size,)) for plane in planes], width)
    words[where] = words[where] ^ values if xor else values


def _join(planes: Sequence[Bytes], width: int) -> Words:
    values = planes[0].astype(f"<u{width}")
    for number, plane in enumerate(planes[1:], 1):
        values |= plane.astype(values.dtype) << (8 * number)
    return values


def _inflate(stream: memoryview, sizes: Sequence[int]) -> Bytes:
    """The uncompressed bytes; room is made only after the size that the stream claims is one of those allowed."""
    try:
        size = zstandard.frame_content_size(stream)
        if size not in sizes:
            raise ValueError(f"a stream claims {size} bytes where {sizes[0]} to {sizes[-1]} belong")
        data = zstandard.ZstdDecompressor().decompress(stream, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a stream is damaged: {error}") from error
    return np.frombuffer(data, np.uint8)
