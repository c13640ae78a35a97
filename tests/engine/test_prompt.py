"""The check that client and embedded engine share."""

from __future__ import annotations

import pytest

from miles_core.engine.prompt import check_prompt
from miles_core.errors import EngineRequestError


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the prompt is empty"),
        ([-1, 3], r"\[0, 40\); got -1"),
        ([3, 40], r"\[0, 40\); got 40"),
        ([3] * 8, "a prompt of 8 tokens leaves no room for output in a context of 14"),
    ],
)
def test_what_no_engine_may_get_is_refused_with_the_bound(ids: list[int], message: str) -> None:
    with pytest.raises(EngineRequestError, match=message) as caught:
        check_prompt(ids, vocab_size=40, context_length=14)
    assert caught.value.remedy


def test_both_bounds_are_met_exactly_by_what_is_accepted() -> None:
    check_prompt([0, 39, 3, 3, 3, 3, 3], vocab_size=40, context_length=14)
