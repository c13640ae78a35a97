from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.api import Placement, TensorSpec, WeightSyncError
from miles_plugins.transports.transfer_engine.runs import end_of, reorder, runs_of

DTYPES = {"uint8": 1, "bfloat16": 2, "float32": 4, "int64": 8}


def placement(parameter, shape, offset=0, strides=None, dtype="bfloat16"):
    spec = TensorSpec("w", dtype, tuple(shape))
    return Placement(spec, spec.whole, parameter, offset, strides)


def written(placements, payload, sizes):
    """What the runs make of parameters full of zeros, and how often each byte was written."""
    runs = runs_of(placements, len(payload))
    staging = np.zeros(runs.staging_bytes, np.uint8)
    reorder(memoryview(payload), staging, runs.reorderings)
    sources = np.concatenate([np.frombuffer(payload, np.uint8), staging])
    held = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
    times = {name: np.zeros(size, int) for name, size in sizes.items()}
    for name, offset, source, nbytes in zip(runs.parameters, runs.offsets, runs.sources, runs.lengths, strict=True):
        held[name][offset : offset + nbytes] = sources[source : source + nbytes]
        times[name][offset : offset + nbytes] += 1
    return runs, held, times


@st.composite
def boxes(draw):
    """A box of up to four dimensions in a parameter whose dimensions are permuted and may be longer than the box."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4).map(tuple))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), draw(st.integers(1, 2))
    for dimension in order:
        strides[dimension] = step
        step *= shape[dimension] + draw(st.integers(0, 2))
    return shape, tuple(strides), draw(st.sampled_from(sorted(DTYPES))), draw(st.integers(0, 5))


@given(st.lists(boxes(), min_size=1, max_size=3), st.integers(0, 255))
def test_each_element_is_written_once_to_where_its_strides_say(drawn, seed):
    placements, sizes = [], {}
    for number, (shape, strides, dtype, offset) in enumerate(drawn):
        placements.append(placement(str(number), shape, offset, strides, dtype))
        sizes[str(number)] = end_of(placements[-1])
    total = sum(one.nbytes for one in placements)
    payload = np.random.default_rng(seed).integers(1, 256, total, np.uint8).tobytes()
    _, held, times = written(placements, payload, sizes)
    start = 0
    for one in placements:
        item = DTYPES[one.tensor.dtype]
        elements = np.frombuffer(payload[start : start + one.nbytes], f"V{item}").reshape(one.shape)
        expected, touched = np.zeros(sizes[one.parameter], np.uint8), 0
        for index in np.ndindex(*one.shape):
            at = one.offset + item * sum(i * stride for i, stride in zip(index, one.strides, strict=True))
            expected[at : at + item] = np.frombuffer(elements[index].tobytes(), np.uint8)
            touched += item
        assert np.array_equal(held[one.parameter], expected)
        assert times[one.parameter].sum() == touched
        assert times[one.parameter].max() == 1
        start += one.nbytes


def test_neighbours_in_payload_and_parameter_are_one_write():
    parts = [placement("qkv", (4, 8), 64 * number) for number in range(3)]
    runs = runs_of([*parts, placement("other", (4, 8))], 4 * 64)
    assert (runs.parameters, runs.offsets, runs.lengths) == (["qkv", "other"], [0, 0], [192, 64])


def test_neighbours_in_the_parameter_alone_are_not():
    runs = runs_of([placement("w", (2,), 4), placement("w", (2,), 0)], 8)
    assert (runs.offsets, runs.sources, runs.lengths) == ([4, 0], [0, 4], [4, 4])


@pytest.mark.parametrize(
    ("shape", "strides", "writes"),
    [
        ((64, 32), (1, 64), 1),  # the whole parameter is the transposed tensor
        ((64, 32), (1, 128), 32),  # half of each of its rows
        ((4, 64, 32), (64 * 32, 1, 64), 1),  # transposed experts in a stack
        ((8, 16), (32, 1), 8),
        ((8, 1, 16), (16, 999, 1), 1),
    ],
)
def test_writes_are_as_long_as_the_parameter_allows(shape, strides, writes):
    one = placement("w", shape, 0, strides)
    assert len(runs_of([one], one.nbytes).lengths) == writes


def test_only_boxes_in_another_order_are_staged():
    whole, rows, turned = placement("a", (8, 8)), placement("b", (8, 8), 0, (16, 1)), placement("c", (8, 8), 0, (1, 8))
    assert runs_of([whole, rows], 256).staging_bytes == 0
    assert runs_of([whole, rows, turned], 384).staging_bytes == 128


def test_an_empty_box_is_not_written():
    assert runs_of([placement("w", (0, 4)), placement("v", (0,), 0, (1,))], 0).lengths == []


def test_a_payload_of_another_size_is_refused():
    with pytest.raises(WeightSyncError, match="hold 32 bytes; its payload 31"):
        runs_of([placement("w", (4, 4))], 31)


@pytest.mark.parametrize(("offset", "strides"), [(-1, None), (0, (0, 1)), (0, (-4, 1))])
def test_a_box_outside_of_its_parameter_is_refused(offset, strides):
    one = placement("w", (4, 4), offset, strides)
    with pytest.raises(WeightSyncError, match="has offset"):
        end_of(one)
    with pytest.raises(WeightSyncError, match="has offset"):
        runs_of([one], one.nbytes)


@given(boxes())
def test_the_end_is_after_the_last_element(box):
    shape, strides, dtype, offset = box
    one = placement("w", shape, offset, strides, dtype)
    item = DTYPES[dtype]
    last = max(sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape))
    assert end_of(one) == offset + (last + 1) * item
    assert math.prod(shape) * item == one.nbytes
