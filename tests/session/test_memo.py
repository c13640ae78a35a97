"""What is kept for texts that come again: the same values, within the bound."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from miles_core.session.memo import Memo


@given(st.lists(st.text("abc", max_size=4), max_size=60), st.integers(0, 12))
def test_values_are_those_of_the_function_and_their_weight_stays_within_the_bound(keys: list[str], bound: int) -> None:
    memo: Memo[str] = Memo(bound)
    for key in keys:
        assert memo.get(key, lambda key=key: key * 2, len) == key * 2
        assert sum(weight for _, weight in memo._entries.values()) == memo._weight <= bound


def test_a_value_is_made_once_and_the_one_used_longest_ago_goes_first() -> None:
    made: list[str] = []

    def make(key: str) -> str:
        made.append(key)
        return key

    memo: Memo[str] = Memo(2)
    for key in "abacab":
        memo.get(key, lambda key=key: make(key), len)
    assert made == ["a", "b", "c", "b"]
