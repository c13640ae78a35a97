"""Plans of a trainer with one rank: which boxes travel together and to whom, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket, Layout, Placement, TensorSpec
from miles_core.types.weights import ITEM_BYTES
from miles_core.weights.misfits import misfits
from miles_core.weights.plan import Receiver, make_plan, whole_plan


def layout(parameters, dtype="float32"):
    """``parameters`` are lists of element counts, one per tensor."""
    placements = []
    for p, sizes in enumerate(parameters):
        offset = 0
        for t, size in enumerate(sizes):
            spec = TensorSpec(f"p{p}.t{t}", dtype, (size,))
            placements.append(Placement(spec, spec.whole, f"p{p}", offset))
            offset += size * ITEM_BYTES[dtype]
    return Layout(tuple(placements))


def engines(*layouts):
    return {Receiver(f"http://engine-{number}"): one for number, one in enumerate(layouts)}


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), max_size=8), st.integers(1, 60))
def test_every_tensor_travels_once_in_bounded_buckets_with_its_parameter(parameters, bound):
    receiver = layout(parameters, "bfloat16")
    plan = make_plan(layout(parameters), engines(receiver, receiver), bound)
    travelling = [one for bucket in plan.buckets for one in bucket.placements]
    assert sorted(travelling, key=lambda one: one.label) == sorted(receiver.placements, key=lambda one: one.label)
    assert plan.nbytes == sum(one.nbytes for one in travelling)
    assert plan.tensors == len(travelling)
    home = {one.label: bucket.index for bucket in plan.buckets for one in bucket.placements}
    for index, bucket in enumerate(plan.buckets):
        assert (bucket.index, bucket.stream) == (index, 0)
        assert bucket.nbytes == sum(one.nbytes for one in bucket.placements)
        assert bucket.nbytes <= bound or len(bucket.placements) == 1
    for p, sizes in enumerate(parameters):
        if sum(sizes) * 2 <= bound:
            assert len({home[f"p{p}.t{t}"] for t in range(len(sizes))}) == 1


def test_buckets_carry_the_receivers_type():
    plan = make_plan(layout([[4]]), engines(layout([[4]], "bfloat16")), 100)
    (placement,) = plan.buckets[0].placements
    assert placement.tensor == TensorSpec("p0.t0", "bfloat16", (4,))


def test_boxes_of_a_bucket_begin_at_multiples_of_their_element_size():
    specs = [TensorSpec("half", "bfloat16", (3,)), TensorSpec("whole", "float32", (2,))]
    mixed = Layout(tuple(Placement(spec, spec.whole, spec.name, 0) for spec in specs))
    (bucket,) = make_plan(mixed, engines(mixed), 100).buckets
    assert [one.label for one in bucket.placements] == ["whole", "half"]


def test_engines_with_equal_layouts_are_one_stream_and_others_get_buckets_of_their_own():
    one, other = layout([[4], [6]]), layout([[4], [6]], "bfloat16")
    plan = make_plan(one, engines(one, other, one), 16)
    assert [[receiver.engine[-1] for receiver in stream.receivers] for stream in plan.streams] == [["0", "2"], ["1"]]
    assert [(bucket.index, bucket.stream, bucket.nbytes) for bucket in plan.buckets] == [
        (0, 0, 16), (1, 0, 24), (2, 1, 8), (3, 1, 12),
    ]  # fmt: skip
    assert (plan.tensors, plan.nbytes) == (2, 40)


def test_ranks_that_hold_different_boxes_get_each_its_own():
    spec = TensorSpec("w", "float32", (4,))
    halves = [Layout((Placement(spec, (half,), "w", 0),)) for half in ((0, 2), (2, 4))]
    ranks = {Receiver("http://e", rank): half for rank, half in enumerate(halves)}
    plan = make_plan(Layout((Placement(spec, spec.whole, "w", 0),)), ranks, 100)
    assert [[one.label for one in bucket.placements] for bucket in plan.buckets] == [["w[0:2]"], ["w[2:4]"]]
    assert [stream.receivers for stream in plan.streams] == [(receiver,) for receiver in ranks]


def test_engines_that_publish_no_layout_get_whole_tensors_in_the_trainers_types():
    source = layout([[4], [6]])
    plan = whole_plan(source, 100)
    assert plan.buckets == (Bucket(0, source.placements, 40),)
    assert plan.streams[0].receivers == ()


ONE = layout([[4], [6]])


@pytest.mark.parametrize(
    ("source", "receivers", "message"),
    [
        (layout([[4]]), [ONE], r"fit engine http://engine-0: no one sends what it needs: 1 \(p1\.t0\)"),
        (ONE, [ONE, layout([[4]])], r"engine-1: it claims nothing of what the trainer sends as: 1 \(p1\.t0\)"),
        (ONE, [replace(ONE, unclaimed=("bias: why",))], r"it has parameters that .* fills: 1 \(bias: why\)"),
        (replace(ONE, unclaimed=("bias: why",)), [ONE], r"the trainer has parameters that .* fills: 1 \(bias: why\)"),
        (ONE, [layout([[4], [7]])], r"other shapes .* 1 \(p1\.t0 float32 \[6\] / float32 \[7\]\)"),
        (ONE, [layout([[4], [6]], "int32")], r"other shapes or types than the trainer sends: 2 \(p0\.t0 float32"),
        (layout([[4]], "float8_e4m3fn"), [layout([[4]], "bfloat16")], r"other shapes or types"),
        (layout([[1]]), [layout([[1]] * 9)], r": 8 \(p1\.t0, p2\.t0, p3\.t0, and 5 more\)"),
    ],
    ids=["unsent", "unclaimed", "engine buffer", "trainer buffer", "shape", "cast", "scaled type", "many"],
)
def test_what_does_not_fit_is_refused_by_name(source, receivers, message):
    with pytest.raises(WeightSyncError, match=message):
        make_plan(source, engines(*receivers), 100)


def test_engines_that_fit_are_told_from_those_that_do_not():
    found = misfits(ONE, engines(ONE, layout([[4]]), layout([[4], [6]], "bfloat16")))
    assert list(found) == ["http://engine-1"]


def test_a_tensor_that_one_rank_needs_and_another_does_not_is_claimed():
    ranks = {Receiver("http://e", rank): layout([[4], [6]]) for rank in (0, 1)}
    ranks[Receiver("http://e", 1)] = layout([[4]])
    assert misfits(ONE, ranks) == {}
    ranks[Receiver("http://e", 1)] = layout([[4], [6], [2]])
    assert "no one sends what rank 1 needs: 1 (p2.t0)" in misfits(ONE, ranks)["http://e"]


def test_driver_modules_import_no_torch():
    modules = "miles_core.weights.plan, miles_core.weights.publish, miles_core.weights.choice, miles_core.app.updates"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
