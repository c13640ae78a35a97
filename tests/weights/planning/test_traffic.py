"""Bytes over links, and the seconds that follow."""

from __future__ import annotations

import numpy as np
import pytest

from miles_core.types import Layout, Placement, TensorSpec
from miles_core.weights.plan import Nodes, Receiver, make_plan
from miles_core.weights.planning.traffic import Links, traffic


def held(rows, total=4):
    spec = TensorSpec("w", "float32", (total, 250_000_000))  # a row is 10^9 bytes
    return Layout((Placement(spec, (rows, (0, 250_000_000)), "w", 0),))


def test_bytes_are_counted_by_sender_receiver_and_link():
    one, two = Receiver("a"), Receiver("b")
    nodes = Nodes([0, 1], {one: 0, two: 2})
    plan = make_plan([held((0, 1)), held((1, 4))], dict.fromkeys((one, two), held((0, 4))), 1, nodes)
    moved = traffic(plan, nodes)
    assert moved.sent_near.tolist() == [10**9, 0]
    assert moved.sent_far.tolist() == [10**9, 6 * 10**9]
    assert [got.tolist() for got in moved.got_far] == [[3 * 10**9, 4 * 10**9]]
    assert [got.tolist() for got in moved.got_near] == [[10**9, 0]]
    assert moved.buckets == 2


def test_the_slowest_rank_and_the_latency_of_the_buckets_make_the_seconds():
    receiver = Receiver("a")
    nodes = Nodes([0, 1], {receiver: 0})
    moved = traffic(make_plan([held((0, 1)), held((1, 4))], {receiver: held((0, 4))}, 1, nodes), nodes)
    assert moved.seconds(Links(rdma=10, node=10, latency=0.5)) == pytest.approx(0.4 + 2 * 0.5)
    assert moved.seconds(Links(rdma=1, node=100, latency=0)) == pytest.approx(3 + 0.01)


def test_a_trainer_of_one_rank_sends_everything():
    receiver = Receiver("a")
    moved = traffic(make_plan(held((0, 4)), {receiver: held((0, 4))}, 1), Nodes([0], {receiver: 1}))
    assert np.array_equal(moved.sent, [4 * 10**9])
