"""Positions as gaps: the way back is exact, the size is bounded, and bytes that are no positions are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_plugins.transports.delta_gaps import largest_size, pack_positions, unpack_positions

WORDS = 5000


@given(st.sets(st.integers(0, WORDS - 1)))
def test_positions_come_back_and_take_no_more_than_the_largest_size(chosen):
    positions = np.array(sorted(chosen), np.intp)
    packed = pack_positions(positions)
    assert positions.size <= packed.size <= largest_size(positions.size, WORDS)
    assert unpack_positions(packed, positions.size, WORDS).tolist() == sorted(chosen)


@pytest.mark.parametrize("position", [0, 1, 254, 255, 256, 509, 510, 511, 4999])
def test_gaps_around_the_escape_come_back(position):
    packed = pack_positions(np.array([position], np.intp))
    assert packed.size == 1 + position // 255
    assert unpack_positions(packed, 1, WORDS).tolist() == [position]


@pytest.mark.parametrize(
    ("packed", "count", "reason"),
    [
        ([0, 0], 1, "2 positions where 1 belong"),
        ([0], 2, "1 positions where 2 belong"),
        ([0, 255], 1, "the last gap of a frame has no end"),
        ([], 1, "0 positions where 1 belong"),
        ([255, 255, 0], 1, "position 510 is beyond a frame of 510 words"),
        ([200, 200, 200], 3, "position 602 is beyond a frame of 510 words"),
    ],
)
def test_bytes_that_are_no_positions_are_refused(packed, count, reason):
    with pytest.raises(ValueError, match=reason):
        unpack_positions(np.array(packed, np.uint8), count, 510)
