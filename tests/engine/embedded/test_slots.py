"""Prefix reuse over slots: the longest one, of the same weights and salt, oldest evicted first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.engine.embedded.slots import PrefixMatch, SlotTable

NOTHING = PrefixMatch(-1, 0)
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=10)


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int32)


def retired(table: SlotTable, ids: list[int], extra_key: str | None = None) -> int:
    slot = table.take(NOTHING, array(ids), extra_key, shared=True)
    table.computed[slot] = len(ids)
    table.retire(slot)
    return slot


def test_slots_stand_in_for_each_other_only_with_equal_tokens_of_the_present_weights() -> None:
    table = table_of()
    first, second, other = (
        table.take(NOTHING, array(ids), None, shared=True) for ids in ([1, 2, 3], [1, 2, 3], [1, 2, 4])
    )
    assert table.prefix_key(first, 3) == table.prefix_key(second, 3) != table.prefix_key(other, 3)
    assert table.prefix_key(first, 2) == table.prefix_key(other, 2)
    table.clear()
    assert len({table.prefix_key(slot, 3) for slot in (first, second, other)}) == 3


def table_of(slots: int = 6) -> SlotTable:
    table = SlotTable(slots)
    table.reserve(16)
    return table


@settings(deadline=None)
@given(stored=st.lists(IDS, max_size=6), prompt=IDS)
def test_match_is_the_longest_common_prefix_short_of_the_last_token(stored: list[list[int]], prompt: list[int]) -> None:
    table = table_of()
    slots = {retired(table, ids): ids for ids in stored}
    match = table.match(array(prompt), None)
    common = {
        slot: next((n for n, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b), min(len(ids), len(prompt)))
        for slot, ids in slots.items()
    }
    best = min(max(common.values(), default=0), len(prompt) - 1)
    assert match.length == best
    if best:
        assert common[match.slot] >= best
        assert match.takes_over == (len(slots[match.slot]) == best)


def test_another_extra_key_shares_nothing() -> None:
    table = table_of()
    retired(table, [1, 2, 3], "v1")
    assert table.match(array([1, 2, 3, 4]), "v2").length == 0
    assert table.match(array([1, 2, 3, 4]), None).length == 0
    assert table.match(array([1, 2, 3, 4]), "v1").length == 3


def test_a_running_slot_lends_what_it_has_computed_but_is_not_taken_over() -> None:
    table = table_of()
    slot = table.take(NOTHING, array([1, 2, 3]), None, shared=True)
    assert table.match(array([1, 2, 3, 4]), None).length == 0
    table.computed[slot] = 2
    assert table.match(array([1, 2, 3, 4]), None) == PrefixMatch(slot, 2, False)


def test_clear_forgets_cached_slots_and_unshares_running_ones() -> None:
    table = table_of(2)
    retired(table, [1, 2])
    running = table.take(NOTHING, array([1, 2]), None, shared=True)
    table.computed[running] = 2
    table.clear()
    assert table.match(array([1, 2, 3]), None).length == 0
    table.retire(running)
    assert table.cached_tokens == 0


def test_the_slot_that_retired_first_is_evicted_first() -> None:
    table = table_of(3)
    first, second, third = (retired(table, [token, token]) for token in (0, 1, 2))
    used_again = table.match(array([0, 0, 1]), None)
    table.retire(table.take(used_again, array([0, 0, 1]), None, shared=True))
    assert used_again.slot == first
    assert table.take(NOTHING, array([5]), None, shared=True) == second
    assert table.take(NOTHING, array([5]), None, shared=True) == third
