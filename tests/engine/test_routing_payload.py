"""Routed experts off the wire: exactly the rows that were asked for, checked, in any layout of layers and chunks."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.engine import routing_payload
from miles_core.engine.routing_payload import decode_routing
from miles_core.errors import RoutingError
from miles_core.types import RoutingSpec

SPEC = RoutingSpec(num_layers=3, layer_ids=(1, 2), num_experts=6, top_k=2)


def rows_of(count: int, spec: RoutingSpec = SPEC) -> np.ndarray:
    """Rows that tell their position and layer."""
    position = np.arange(count)[:, None, None] + np.arange(spec.num_layers)[:, None]
    return ((position + np.arange(spec.top_k)) % spec.num_experts).astype("<i4")


def encoded(rows: np.ndarray) -> str:
    return pybase64.b64encode(rows.tobytes()).decode()


def decode(payload: Any, *, tokens: int, start: int = 0, sent_from: int | None = None) -> np.ndarray:
    return decode_routing(
        payload, SPEC, tokens=tokens, start=start, sent_from=start if sent_from is None else sent_from
    )


def test_a_published_models_payload_has_a_row_for_every_token_but_the_last() -> None:
    spec = RoutingSpec(num_layers=48, layer_ids=tuple(range(48)), num_experts=128, top_k=8)
    payload = encoded(rows_of(7, spec))
    assert len(payload) == 14336
    rows = decode_routing(payload, spec, tokens=5 + 3, start=0, sent_from=0)
    assert (rows.shape, rows.dtype) == ((7, 48, 8), np.uint8)
    assert (rows == rows_of(7, spec)).all()


@given(
    layers=st.integers(1, 5),
    top_k=st.integers(1, 5),
    tokens=st.integers(1, 60),
    chunk=st.integers(1, 4000),
    data=st.data(),
)
def test_any_rows_in_any_chunks_come_out_as_they_were_sent(
    layers: int, top_k: int, tokens: int, chunk: int, data: st.DataObject
) -> None:
    moe = data.draw(st.sets(st.integers(0, layers - 1), min_size=1))
    spec = RoutingSpec(layers, tuple(sorted(moe)), num_experts=7, top_k=top_k)
    start = data.draw(st.integers(0, tokens))
    sent_from = data.draw(st.integers(0, start))
    whole = rows_of(tokens - 1, spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing_payload, "_CHUNK", chunk)
        rows = decode_routing(encoded(whole[sent_from:]), spec, tokens=tokens, start=start, sent_from=sent_from)
    np.testing.assert_array_equal(rows, whole[start:][:, list(spec.layer_ids)])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (encoded(rows_of(6)), r"must hold 168 bytes: 7 rows x 3 layers x 2 experts x 4; got 144, which is 6 rows"),
        (encoded(rows_of(8)), r"must hold 168 bytes.*got 192, which is 8 rows"),
        (encoded(rows_of(7))[:-8], "must hold 168 bytes.*got 162\n"),
        (pybase64.b64encode(b"\0" * 50).decode(), "must hold 168 bytes.*got 50\n"),
        (encoded(np.zeros((7, 4, 2), "<i4")), "got 224, which is 8 experts per row instead of 6"),
        (encoded(np.zeros((7, 3, 8), "<i4")), "got 672, which is 28 rows"),
        (encoded(np.zeros((7, 3, 2), "<i8")), "got 336, which is 14 rows"),
        (encoded(np.zeros((7, 3, 2), "u1")), "got 42\n"),
        ("", "got 0, which is 0 rows"),
    ],
)
def test_a_payload_of_another_size_is_refused_naming_both(payload: str, message: str) -> None:
    with pytest.raises(RoutingError, match=message):
        decode(payload, tokens=8)


def test_a_prefix_cache_hit_that_sends_only_new_rows_is_short() -> None:
    with pytest.raises(RoutingError, match="103 rows x.*which is 39 rows"):
        decode(encoded(rows_of(39)), tokens=104)


def test_layers_and_top_k_of_the_same_product_are_told_by_the_experts() -> None:
    """Four layers of two in place of two of four: the size is right, the rows are not."""
    spec = RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=6, top_k=4)
    foreign = RoutingSpec(num_layers=4, layer_ids=(0, 1, 2, 3), num_experts=6, top_k=2)
    with pytest.raises(RoutingError, match="names an expert twice"):
        decode_routing(encoded(rows_of(7, foreign)), spec, tokens=8, start=0, sent_from=0)


@pytest.mark.parametrize(
    ("experts", "message"),
    [([0, 6], "expert id 6 at row 5, layer 2"), ([-1, 0], "expert id -1 at row 5"), ([3, 3], "row 5, layer 2 names")],
)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_impossible_experts_are_named_by_their_row_in_the_sequence(
    chunk: int, experts: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_payload, "_CHUNK", chunk)
    rows = rows_of(9)
    rows[5, 2] = experts
    with pytest.raises(RoutingError, match=message):
        decode(encoded(rows), tokens=10)
    with pytest.raises(RoutingError, match=message):
        decode(encoded(rows[4:]), tokens=10, start=4)


def test_an_engine_that_ignores_the_start_sends_all_rows_and_only_the_missing_are_taken() -> None:
    np.testing.assert_array_equal(decode(encoded(rows_of(12)), tokens=13, start=8), rows_of(12)[8:, 1:])


@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (1, 1), (5, 4), (5, 5)])
def test_where_nothing_was_fed_beyond_the_start_there_are_no_rows(tokens: int, start: int) -> None:
    assert decode("", tokens=tokens, start=start).shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("&&&&", "not base64"),
        ("AAA", "not base64"),
        ("é" * 224, "not base64"),
        ("_" * 224, "not base64"),
        ("A" * 222 + "==", "must hold 168 bytes.*got 166"),
        ("A" * 94 + "==" + "A" * 128, "not base64"),
        (b"AAAA", "must be a base64 text; got bytes"),
        ([0, 1], "must be a base64 text; got list"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_what_is_no_base64_text_is_refused(
    chunk: int, payload: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_payload, "_CHUNK", chunk)
    with pytest.raises(RoutingError, match=message):
        decode(payload, tokens=8)


def test_rows_share_no_memory_with_the_payload_and_the_payload_is_never_whole_in_memory() -> None:
    spec = RoutingSpec(num_layers=16, layer_ids=tuple(range(16)), num_experts=128, top_k=8)
    payload = encoded(rows_of(32_000, spec))
    tracemalloc.start()
    try:
        rows = decode_routing(payload, spec, tokens=32_001, start=0, sent_from=0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.01 * rows.nbytes
    assert peak < rows.nbytes + 6 * routing_payload._CHUNK < 32_000 * 16 * 8 * 4
