"""What plugins report becomes JSON that a browser reads without a loss that nobody sees."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.telemetry.report.plain import plain

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_everything_is_json_that_a_browser_reads(value):
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text, parse_int=lambda digits: float(digits) and int(float(digits))) == plain(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**53, 2**53),
        (2**53 + 1, "9007199254740993"),
        ((1, {"a": (True,)}), [1, {"a": [True]}]),
        (np.arange(3), [0, 1, 2]),
        (np.array([np.nan]), ["nan"]),
        (np.zeros((10, 20), np.float32), "array float32 [10, 20]"),
        (1j, "1j"),
    ],
)
def test_what_json_has_no_word_for_is_spelled(value, shown):
    assert plain(value) == shown
