"""The order of rows: every row once per epoch, and a position from which a walk goes on as if it had never stopped."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from miles_plugins.sources import order as module
from miles_plugins.sources.order import BlockOrder, Position, Walk

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=50).filter(any)


def walk(sizes, *, seed=0, shuffle=True, block_bytes=None) -> Walk:
    """A walk over blocks of consecutive numbers."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    blocks = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    order = BlockOrder(block_bytes or [1] * len(sizes), seed=seed, shuffle=shuffle)
    return Walk(order, blocks.__getitem__)


def taken(source: Walk, count: int):
    rows = (source.next() for _ in range(count))
    return [(epoch, block[index]) for epoch, block, index in rows]


@given(SIZES, st.integers(0, 3), st.booleans())
def test_every_epoch_holds_every_row_once(sizes, seed, shuffle):
    total = sum(sizes)
    source = walk(sizes, seed=seed, shuffle=shuffle)
    for number in range(3):
        epoch = taken(source, total)
        assert sorted(epoch) == [(number, row) for row in range(total)]


@settings(deadline=None)
@given(SIZES, st.integers(0, 3), st.booleans(), st.data())
def test_a_walk_goes_on_from_any_position_as_an_uninterrupted_one(sizes, seed, shuffle, data):
    source = walk(sizes, seed=seed, shuffle=shuffle)
    whole = taken(source, 3 * sum(sizes))
    cut = data.draw(st.integers(0, len(whole)))
    source.position = Position()
    taken(source, cut)
    resumed = walk(sizes, seed=seed, shuffle=shuffle)
    resumed.position = source.position
    assert taken(resumed, len(whole) - cut) == whole[cut:]


@given(SIZES)
def test_without_shuffling_rows_keep_their_order(sizes):
    assert taken(walk(sizes, shuffle=False), sum(sizes)) == [(0, row) for row in range(sum(sizes))]


def test_orders_differ_by_epoch_and_by_seed():
    sizes = [5] * 40
    first, second = (taken(source := walk(sizes), 200), taken(source, 200))
    assert [row for _, row in first] != [row for _, row in second]
    assert first != taken(walk(sizes, seed=1), 200)
    assert first == taken(walk(sizes), 200)


def test_what_fits_into_a_window_is_shuffled_across_its_blocks():
    rows = [row for _, row in taken(walk([10] * 16), 160)]
    in_first_half = sum(row < 80 for row in rows[:80])
    assert 25 < in_first_half < 55


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60))
def test_windows_are_bounded_in_blocks_and_bytes_and_hold_each_block_once(block_bytes):
    unit = module.WINDOW_BYTES // 100
    order = BlockOrder([size * unit for size in block_bytes], seed=0, shuffle=True)
    windows = order.windows(4)
    assert sorted(block for window in windows for block in window) == list(range(len(block_bytes)))
    for window in windows:
        assert len(window) <= module.WINDOW_BLOCKS
        assert len(window) == 1 or sum(block_bytes[block] for block in window) <= 100


def test_only_one_window_of_blocks_is_held():
    held: list[int] = []

    class Counted(list):
        def __init__(self, number):
            super().__init__([number])
            held.append(number)

        def __del__(self):
            held.pop()

    source = Walk(BlockOrder([1] * 64, seed=0, shuffle=True), Counted)
    most = 0
    for _ in range(64):
        source.next()
        most = max(most, len(held))
    assert most == module.WINDOW_BLOCKS


def test_blocks_without_a_row_end_the_walk_instead_of_going_round_for_ever():
    assert list(islice(iter(walk([0] * 40).next, None), 1)) == []
