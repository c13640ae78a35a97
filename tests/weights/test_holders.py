"""Who holds which box, and where boxes are cut."""

from __future__ import annotations

from miles_core.types import Layout, Placement, TensorSpec
from miles_core.weights.holders import Holders

SPEC = TensorSpec("w", "float32", (4, 6))


def placed(*region, spec=SPEC, offset=0):
    return Placement(spec, region, "p", offset)


def layout(*regions):
    return Layout(tuple(placed(*region) for region in regions))


def test_a_box_is_cut_where_shards_meet_and_each_part_says_where_it_lies():
    holders = Holders([layout(((0, 4), (0, 2))), layout(((0, 4), (2, 6)))])
    left, right = holders.pieces(placed((0, 4), (0, 6), offset=8))
    assert (left.region, left.offset, left.strides) == (((0, 4), (0, 2)), 8, (6, 1))
    assert (right.region, right.offset, right.strides) == (((0, 4), (2, 6)), 16, (6, 1))
    assert [holders.sets[holders.set_of(piece)] for piece in (left, right)] == [(0,), (1,)]


def test_rows_of_a_box_stay_back_to_back():
    holders = Holders([layout(((0, 1), (0, 6))), layout(((1, 4), (0, 6)))])
    assert [(p.offset, p.strides) for p in holders.pieces(placed((0, 4), (0, 6)))] == [(0, None), (24, None)]


def test_ranks_that_hold_the_same_are_one_set_and_shards_of_other_sizes_overlap():
    halves = layout(((0, 2), (0, 6)))
    holders = Holders([halves, halves, layout(((0, 4), (0, 6)))])
    pieces = list(holders.pieces(placed((0, 4), (0, 6))))
    assert [piece.region[0] for piece in pieces] == [(0, 2), (2, 4)]
    assert [holders.sets[holders.set_of(piece)] for piece in pieces] == [(0, 1, 2), (2,)]


def test_a_box_that_someone_holds_whole_is_not_cut_even_if_it_is_empty():
    holders = Holders([Layout((placed((0, 0), spec=TensorSpec("e", "float32", (0,))), placed((0, 4), (0, 6))))])
    for box in (placed((1, 3), (2, 2)), placed((0, 4), (0, 6)), placed((0, 0), spec=TensorSpec("e", "float32", (0,)))):
        assert list(holders.pieces(box)) == [box]
        assert holders.covers(box)


def test_what_no_one_holds_is_not_covered():
    holders = Holders([layout(((0, 2), (0, 6)))])
    assert not holders.covers(placed((1, 3), (0, 6)))
    assert not holders.covers(placed((0, 1), spec=TensorSpec("other", "float32", (1,))))
    assert holders.covers(placed((0, 1), (3, 4)))
