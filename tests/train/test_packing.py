"""Micro-batches: everything once, within the budget, and the padding undone exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from miles_core.train.packing import micro_batches, pad_rows, scatter_rows

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 100), st.randoms())
def test_every_sample_comes_once_and_the_budget_holds(lengths: list[int], budget: int, random) -> None:
    order = list(range(len(lengths)))
    random.shuffle(order)
    batches = micro_batches(lengths, order, budget)
    assert sorted(i for batch in batches for i in batch) == sorted(order)
    for batch in batches:
        padded = max(lengths[i] for i in batch) * len(batch)
        assert padded <= budget or len(batch) == 1
    assert batches == micro_batches(lengths, sorted(order), budget), "the order does not matter"


@given(LENGTHS)
def test_scattering_undoes_padding(lengths: list[int]) -> None:
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.arange(cu_seqlens[-1], dtype=np.float32)
    rows = list(range(len(lengths)))[::-1]
    padded = pad_rows(flat, cu_seqlens, rows)
    assert padded.shape == (len(lengths), max(lengths))
    back = np.full_like(flat, -1)
    scatter_rows(back, cu_seqlens, rows, padded)
    assert (back == flat).all()
