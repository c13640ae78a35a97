"""Layouts: every fed token has one cell, and what is said about the next token comes back to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from miles_core.train.layout import fed_tokens, packed_layout, padded_layout

from .conftest import make_sample

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=8)
LAYOUTS = pytest.mark.parametrize("make", [padded_layout, packed_layout])


@LAYOUTS
@given(LENGTHS)
def test_what_is_placed_comes_back_at_the_token_that_follows(make, lengths: list[int]) -> None:
    layout = make(lengths)
    marks = np.concatenate([100 * row + np.arange(length - 1) for row, length in enumerate(lengths)]) + 1
    placed = layout.place_tokens(marks, 0)
    assert placed.shape == layout.shape
    assert sorted(placed[placed > 0].tolist()) == sorted(marks.tolist())
    back = layout.by_sample(placed.flatten())
    expected = np.zeros((len(lengths), max(lengths)), np.int64)
    for row, length in enumerate(lengths):
        expected[row, 1:length] = 100 * row + np.arange(length - 1) + 1
    assert back.tolist() == expected.tolist()


@given(LENGTHS)
def test_padding_is_on_the_right_and_fills_free_cells_in_order(lengths: list[int]) -> None:
    layout = padded_layout(lengths)
    free = layout.shape[0] * layout.shape[1] - layout.fed
    values = -np.ones(layout.fed, np.int64)
    placed = layout.place(values, np.arange(free)).reshape(layout.shape)
    for row, length in zip(placed, lengths, strict=True):
        assert (row[: length - 1] == -1).all()
    assert placed[placed >= 0].tolist() == list(range(free))


@given(LENGTHS)
def test_a_packed_row_has_no_padding_and_positions_that_start_again(lengths: list[int]) -> None:
    layout = packed_layout(lengths)
    assert layout.shape == (1, layout.fed)
    assert [span.stop - span.start for span in layout.spans] == [length - 1 for length in lengths if length > 1]
    assert layout.positions.tolist() == [[at for length in lengths for at in range(length - 1)]]


def test_fed_tokens_carry_the_temperature_of_the_token_that_follows() -> None:
    fed = fed_tokens([make_sample(6, temperature=0.5, prompt=2), make_sample(1, prompt=1), make_sample(4, prompt=3)])
    assert len(fed.tokens) == len(fed.targets) == 8
    assert fed.temperatures.tolist() == [1, 0.5, 0.5, 0.5, 0.5, 1, 1, 1]


def test_gradients_flow_back_to_the_cells_of_fed_tokens() -> None:
    layout = padded_layout([3, 1, 2])
    values = torch.ones(6, requires_grad=True)
    layout.by_sample(values).sum().backward()
    assert values.grad.tolist() == [1, 1, 0, 0, 1, 0]
