"""Rising positions as bytes: the gaps between them, where 255 means that the next byte goes on with a longer gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MORE = 255


def pack_positions(positions: NDArray[np.intp]) -> NDArray[np.uint8]:
    """The bytes of strictly rising positions ``[N]``: their number and one more for each 255 words that a gap spans."""
    gaps = np.diff(positions, prepend=-1) - 1
    more = gaps // _MORE
    if not more.any():
        return gaps.astype(np.uint8)
    ends = np.cumsum(more + 1) - 1
    packed = np.full(ends[-1] + 1, _MORE, np.uint8)
    packed[ends] = gaps - more * _MORE
    return packed


def largest_size(count: int, words: int) -> int:
    """The most bytes that ``count`` positions below ``words`` can take."""
    return count + words // _MORE


def unpack_positions(packed: NDArray[np.uint8], count: int, words: int) -> NDArray[Any]:
    """The ``count`` positions, all below ``words``.

    Raises:
        ValueError: if there are more or fewer, or one is too large.
    """
    ends = np.flatnonzero(packed != _MORE)
    if ends.size != count:
        raise ValueError(f"a frame has {ends.size} positions where {count} belong")
    if packed.size and packed[-1] == _MORE:
        raise ValueError("the last gap of a frame has no end")
    positions = np.cumsum(packed, dtype=np.int64)[ends] + np.arange(count)
    if count and positions[-1] >= words:
        raise ValueError(f"position {positions[-1]} is beyond a frame of {words} words")
    return positions
