from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import WeightSyncError
from miles_core.types import Parameter, Placement, TensorSpec
from miles_core.weights.coverage import filled_bytes

PARAMETER = Parameter("p", "float32", (6, 8))


def box(rows, columns, *, offset=None, strides=None):
    (top, bottom), (left, right) = rows, columns
    spec = TensorSpec(f"t{top}-{bottom}-{left}-{right}-{strides}", "float32", (bottom - top, right - left))
    start = 4 * (8 * top + left) if offset is None else offset
    packed = (left, right) == (0, 8)
    return Placement(spec, spec.whole, "p", start, strides or (None if packed else (8, 1)))


def test_rows_and_columns_fill_what_they_hold():
    assert filled_bytes(PARAMETER, [box((0, 2), (0, 8)), box((2, 6), (0, 8))]) == PARAMETER.nbytes
    assert filled_bytes(PARAMETER, [box((0, 6), (0, 3)), box((0, 6), (3, 8))]) == PARAMETER.nbytes
    assert filled_bytes(PARAMETER, []) == 0


def test_boxes_that_overlap_are_refused_though_the_sum_is_right():
    with pytest.raises(WeightSyncError, match="overlaps another tensor of this update in p"):
        filled_bytes(PARAMETER, [box((0, 4), (0, 8)), box((3, 5), (0, 8))])
    with pytest.raises(WeightSyncError, match="overlaps"):
        filled_bytes(PARAMETER, [box((0, 6), (0, 4)), box((0, 6), (3, 7))])


def test_a_transposed_box_may_lie_between_others():
    turned = Placement(TensorSpec("t", "float32", (3, 6)), ((0, 3), (0, 6)), "p", 4 * 5, (1, 8))
    assert filled_bytes(PARAMETER, [box((0, 6), (0, 5)), turned]) == PARAMETER.nbytes


edges = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda e: e[0] < e[1])
sides = st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda e: e[0] < e[1])


@given(st.lists(st.tuples(edges, sides), max_size=4))
def test_it_agrees_with_marking_every_element(boxes):
    marks = np.zeros((6, 8), int)
    for rows, columns in boxes:
        marks[slice(*rows), slice(*columns)] += 1
    placements = [box(*one) for one in boxes]
    if (marks > 1).any():
        with pytest.raises(WeightSyncError):
            filled_bytes(PARAMETER, placements)
    else:
        assert filled_bytes(PARAMETER, placements) == 4 * int((marks > 0).sum())
