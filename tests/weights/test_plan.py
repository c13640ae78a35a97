from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import WeightSyncError
from miles_core.types import Layout, Placement, TensorSpec
from miles_core.weights.plan import make_plan


def layout(parameters, dtype="float32", itemsize=4):
    """``parameters`` are lists of element counts, one per tensor."""
    placements = []
    for p, sizes in enumerate(parameters):
        offset = 0
        for t, size in enumerate(sizes):
            placements.append(Placement(TensorSpec(f"p{p}.t{t}", dtype, (size,), size * itemsize), f"p{p}", offset))
            offset += size * itemsize
    return Layout(tuple(placements))


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), max_size=8), st.integers(1, 60))
def test_every_tensor_travels_once_in_bounded_buckets_with_its_parameter(parameters, bound):
    receiver = layout(parameters, "bfloat16", 2)
    plan = make_plan(layout(parameters), [receiver, receiver], bound)
    travelling = [tensor for bucket in plan.buckets for tensor in bucket.tensors]
    assert sorted(travelling, key=lambda t: t.name) == sorted(receiver.tensors.values(), key=lambda t: t.name)
    assert plan.nbytes == sum(tensor.nbytes for tensor in travelling)
    assert plan.tensors == len(travelling)
    home = {tensor.name: bucket.index for bucket in plan.buckets for tensor in bucket.tensors}
    for index, bucket in enumerate(plan.buckets):
        assert bucket.index == index
        assert bucket.nbytes == sum(tensor.nbytes for tensor in bucket.tensors)
        assert bucket.nbytes <= bound or len(bucket.tensors) == 1
    for p, sizes in enumerate(parameters):
        if sum(sizes) * 2 <= bound:
            assert len({home[f"p{p}.t{t}"] for t in range(len(sizes))}) == 1


def test_buckets_carry_the_receivers_type():
    plan = make_plan(layout([[4]]), [layout([[4]], "bfloat16", 2)], 100)
    assert plan.buckets[0].tensors == (TensorSpec("p0.t0", "bfloat16", (4,), 8),)


def test_tensors_of_a_bucket_begin_at_multiples_of_their_element_size():
    specs = [TensorSpec("half", "bfloat16", (3,), 6), TensorSpec("whole", "float32", (2,), 8)]
    mixed = Layout(tuple(Placement(spec, spec.name, 0) for spec in specs))
    (bucket,) = make_plan(mixed, [mixed], 100).buckets
    assert [spec.name for spec in bucket.tensors] == ["whole", "half"]


ONE = layout([[4], [6]])


@pytest.mark.parametrize(
    ("source", "receivers", "message"),
    [
        (layout([[4]]), [ONE], r"no one sends what engine 0 needs: 1 \(p1\.t0\)"),
        (ONE, [ONE, layout([[4]])], r"engine 1 claims nothing of what the trainer sends as: 1 \(p1\.t0\)"),
        (ONE, [replace(ONE, unclaimed=("bias",))], r"engine 0 has parameters that .* fills: 1 \(bias\)"),
        (replace(ONE, unclaimed=("bias",)), [ONE], r"the trainer has parameters that .* fills: 1 \(bias\)"),
        (ONE, [layout([[4], [7]])], r"other shapes .* 1 \(p1\.t0 float32 \[6\] / float32 \[7\]\)"),
        (ONE, [layout([[4], [6]], "int32")], r"other shapes or types than the trainer sends: 2 \(p0\.t0 float32"),
        (ONE, [ONE, layout([[4], [6]], "bfloat16", 2)], r"engine 1 differs from engine 0: 2 \("),
        (ONE, [], "there is no engine"),
        (layout([[1]]), [layout([[1]] * 9)], r": 8 \(p1\.t0, p2\.t0, p3\.t0, and 5 more\)"),
    ],
    ids=["unsent", "unclaimed", "engine buffer", "trainer buffer", "shape", "cast", "disagree", "no engine", "many"],
)
def test_what_does_not_fit_is_refused_by_name(source, receivers, message):
    with pytest.raises(WeightSyncError, match=message):
        make_plan(source, receivers, 100)


def test_driver_modules_import_no_torch():
    code = "import sys, miles_core.weights.plan, miles_core.weights.publish; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
