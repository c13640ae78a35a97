"""Routing traces: which rows exist, where they belong, and what may not be in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import RoutingError
from miles_core.types import RoutingSpec, RoutingTrace

SPEC = RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=4, top_k=2)


def rows(count: int, first: int = 0, *, spec: RoutingSpec = SPEC) -> np.ndarray:
    """Rows that tell their position: experts (p, p + 1) mod E."""
    positions = np.arange(first, first + count)[:, None, None]
    slots = np.arange(spec.top_k)[None, None, :]
    return np.broadcast_to((positions + slots) % spec.num_experts, (count, spec.num_layers, spec.top_k)).astype(
        np.int32
    )


def test_a_sequence_has_a_row_for_every_token_but_the_last() -> None:
    trace = RoutingTrace.empty(SPEC).extended(rows(7), 0, SPEC, tokens=8)
    assert trace.rows == 7


@pytest.mark.parametrize("count", [6, 8])
def test_a_wrong_row_count_names_what_was_expected_and_what_came(count: int) -> None:
    with pytest.raises(RoutingError, match=rf"\(7, 2, 2\).*got \({count}, 2, 2\)"):
        RoutingTrace.empty(SPEC).extended(rows(count), 0, SPEC, tokens=8)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 4], "expert id 4 at row 1, layer 0 is out of range"),
        ([1, 1], "row 1, layer 0 names an expert twice"),
        ([-1, 0], "-1"),
    ],
)
def test_impossible_experts_are_refused_with_their_place(row: list[int], message: str) -> None:
    wire = rows(3)
    wire[1, 0] = row
    with pytest.raises(RoutingError, match=message):
        RoutingTrace.empty(SPEC).extended(wire, 0, SPEC, tokens=4)


def test_rows_that_start_at_the_requested_position_are_appended_there() -> None:
    first = RoutingTrace.empty(SPEC).extended(rows(9), 0, SPEC, tokens=10)
    second = first.extended(rows(6, first=9), 9, SPEC, tokens=16)
    assert second.rows == 15
    assert (second.experts == rows(15)).all()


def test_rows_that_do_not_abut_are_refused_with_the_remedy() -> None:
    first = RoutingTrace.empty(SPEC).extended(rows(5), 0, SPEC, tokens=6)
    with pytest.raises(RoutingError, match="5 rows, the reply starts at row 7") as caught:
        first.extended(rows(2), 7, SPEC, tokens=10)
    assert "routed_experts_start_len <= 5" in (caught.value.remedy or "")


def test_a_reply_over_the_whole_sequence_contributes_only_missing_rows() -> None:
    """A prefix that is computed again may be routed otherwise; what was sampled from stays."""
    first = RoutingTrace.empty(SPEC).extended(rows(8), 0, SPEC, tokens=9)
    again = (rows(12) + 2) % 4
    second = first.extended(again, 0, SPEC, tokens=13)
    assert (second.experts[:8] == rows(8)).all()
    assert (second.experts[8:] == again[8:]).all()


def test_only_moe_layers_are_kept_by_their_global_ids() -> None:
    spec = RoutingSpec(num_layers=6, layer_ids=(1, 2, 3, 4, 5), num_experts=300, top_k=2)
    wire = rows(3, spec=spec).copy()
    wire[:, 0] = 0  # a dense layer's row says nothing and may repeat
    trace = RoutingTrace.empty(spec).extended(wire, 0, spec, tokens=4)
    assert trace.experts.shape == (3, 5, 2)
    assert trace.layer_ids == (1, 2, 3, 4, 5)
    assert trace.experts.dtype == np.uint16


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_turns_assemble_to_one_trace_however_they_are_cut(turns: list[int], whole: bool) -> None:
    trace, tokens = RoutingTrace.empty(SPEC), 1
    for new in turns:
        tokens += new
        start = 0 if whole else trace.rows
        trace = trace.extended(rows(tokens - 1 - start, first=start), start, SPEC, tokens=tokens)
    assert (trace.experts == rows(sum(turns))).all()
