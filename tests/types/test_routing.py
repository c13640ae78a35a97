"""Routing traces: which rows exist, where they belong, and what may not be in them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import RoutingError
from miles_core.types import RoutingSpec, RoutingTrace
from miles_core.types.routing import checked_rows, join_rows

SPEC = RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=4, top_k=2)


def wire(count: int, spec: RoutingSpec = SPEC) -> np.ndarray:
    """Rows as an engine sends them, that tell their position and layer: experts (p + l, p + l + 1, ...) mod E."""
    position = np.arange(count)[:, None, None] + np.arange(spec.num_layers)[:, None]
    return ((position + np.arange(spec.top_k)) % spec.num_experts).astype(np.int32)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 4], "expert id 4 at row 11, layer 0 is out of range: the model has 4 experts"),
        ([-1, 0], "expert id -1 at row 11"),
        ([0, -(2**31)], "expert id -2147483648 at row 11"),
        ([0, 256], "expert id 256 at row 11"),
        ([0, 2**31 - 1], "expert id 2147483647 at row 11"),
        ([1, 1], r"row 11, layer 0 names an expert twice: \[1, 1\]"),
    ],
)
def test_impossible_experts_are_refused_with_their_place(row: list[int], message: str) -> None:
    rows = wire(3)
    rows[1, 0] = row
    with pytest.raises(RoutingError, match=message):
        checked_rows(rows, SPEC, first_row=10)


@given(st.integers(1, 9), st.data())
def test_an_expert_that_comes_twice_is_found_in_any_two_slots(top_k: int, data: st.DataObject) -> None:
    spec = RoutingSpec(num_layers=3, layer_ids=(0, 1, 2), num_experts=300, top_k=top_k)
    rows = wire(5, spec)
    assert (checked_rows(rows, spec, first_row=0) == rows).all()
    if top_k > 1:
        one, other = data.draw(st.lists(st.integers(0, top_k - 1), min_size=2, max_size=2, unique=True))
        rows[3, 2, one] = rows[3, 2, other]
        with pytest.raises(RoutingError, match="row 3, layer 2 names an expert twice"):
            checked_rows(rows, spec, first_row=0)


@pytest.mark.parametrize("layer_ids", [(1, 2, 3, 4, 5), (2, 3), (1, 3, 5), (0, 5), (4,)])
def test_only_moe_layers_are_kept_and_dense_ones_may_hold_anything(layer_ids: tuple[int, ...]) -> None:
    spec = RoutingSpec(num_layers=6, layer_ids=layer_ids, num_experts=300, top_k=2)
    rows = wire(3, spec)
    dense = [layer for layer in range(6) if layer not in layer_ids]
    rows[:, dense] = -7
    kept = checked_rows(rows, spec, first_row=0)
    assert kept.dtype == np.uint16
    assert (kept == wire(3, spec)[:, list(layer_ids)]).all()


def test_errors_name_the_layer_by_its_global_id() -> None:
    spec = RoutingSpec(num_layers=4, layer_ids=(1, 3), num_experts=4, top_k=2)
    rows = wire(3, spec)
    rows[2, 3] = [3, 3]
    with pytest.raises(RoutingError, match="row 2, layer 3"):
        checked_rows(rows, spec, first_row=0)
    rows[2, 3] = [3, 4]
    with pytest.raises(RoutingError, match="row 2, layer 3"):
        checked_rows(rows, spec, first_row=0)


@pytest.mark.parametrize(("experts", "kept"), [(4, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_ids_are_kept_in_the_smallest_type_that_holds_them(experts: int, kept: type) -> None:
    spec = RoutingSpec(num_layers=1, layer_ids=(0,), num_experts=experts, top_k=1)
    rows = checked_rows(np.array([[[experts - 1]]], np.int32), spec, first_row=0)
    assert (rows.dtype, rows.item()) == (kept, experts - 1)


@given(st.lists(st.integers(0, 9), max_size=6))
def test_a_trace_is_the_same_however_its_rows_were_cut(counts: list[int]) -> None:
    whole = checked_rows(wire(sum(counts)), SPEC, first_row=0)
    parts = np.split(whole, np.cumsum(counts)[:-1]) if counts else []
    trace = RoutingTrace.joined(parts, SPEC)
    assert trace.rows == sum(counts)
    assert trace.layer_ids == SPEC.layer_ids
    assert trace.experts.dtype == np.uint8
    assert (trace.experts == whole).all()


def test_a_joined_trace_holds_each_layer_in_one_piece_also_in_another_process() -> None:
    parts = [checked_rows(wire(count), SPEC, first_row=0) for count in (3, 4)]
    trace = RoutingTrace.joined(parts, SPEC)
    for same in (trace, pickle.loads(pickle.dumps(trace)), copy.deepcopy(trace)):
        assert same.layer_ids == trace.layer_ids
        assert (same.experts == np.concatenate(parts)).all()
        assert all(same.experts[:, layer].flags.c_contiguous for layer in range(2))


def test_a_single_part_is_taken_as_it_is_and_a_trace_is_read_only() -> None:
    rows = checked_rows(wire(3), SPEC, first_row=0)
    assert join_rows([rows, rows[:0]], SPEC) is rows
    for trace in (RoutingTrace.joined([rows], SPEC), pickle.loads(pickle.dumps(RoutingTrace.joined([rows], SPEC)))):
        with pytest.raises(ValueError, match="read-only"):
            trace.experts[0] = 0
