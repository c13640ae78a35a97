"""Greedy shares."""

from __future__ import annotations

import numpy as np

from miles_core.weights.balance import share_out


def loads(senders, sizes, ranks):
    return [int(sizes[senders == rank].sum()) for rank in range(ranks)]


def test_each_box_goes_to_one_who_can_send_it_and_shared_work_fills_up_the_idle():
    sets = [(0, 1, 2), (1,), (0, 1)]
    numbers = np.array([1, 0, 0, 0, 2, 2], np.int32)
    sizes = np.array([6, 4, 3, 3, 5, 2], np.int64)
    senders = share_out(sets, numbers, sizes)
    assert all(senders[one] in sets[numbers[one]] for one in range(6))
    assert loads(senders, sizes, 3) == [7, 9, 7]


def test_equal_boxes_are_shared_evenly():
    sizes = np.full(1000, 7, np.int64)
    assert loads(share_out([(0, 1, 2, 3)], np.zeros(1000, np.int32), sizes), sizes, 4) == [1750] * 4


def test_no_boxes_need_no_senders():
    assert share_out([], np.zeros(0, np.int32), np.zeros(0, np.int64)).tolist() == []
