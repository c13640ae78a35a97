from __future__ import annotations

import pytest
import torch

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket, TensorSpec
from miles_core.weights.plan import make_plan
from miles_core.weights.source import WeightSource


def test_bucket_holds_the_cast_tensors_back_to_back(tiny, memory, source_of, layout_of):
    trained = tiny()
    source = source_of(trained, memory)
    plan = make_plan(source.layout, [layout_of(tiny(dtype=torch.bfloat16))], 2000)
    saved = dict(source._tensors(list(source.layout.tensors)))
    for bucket in plan.buckets:
        delivery, _ = source.stage(bucket)
        data = torch.frombuffer(memory.receive(delivery, bucket), dtype=torch.bfloat16)
        expected = torch.cat([saved[spec.name].detach().flatten().bfloat16() for spec in bucket.tensors])
        assert torch.equal(data, expected)
        source.release(delivery)


@pytest.mark.parametrize(
    ("yielded", "came"),
    [([], "nothing"), ([("other", torch.zeros(2))], r"other \[2\]"), ([("w", torch.zeros(3))], r"w \[3\]")],
)
def test_tensors_that_are_not_the_ones_asked_for_are_refused(tiny, memory, yielded, came):
    spec = TensorSpec("w", "float32", (2,), 8)
    layout = type("L", (), {"tensors": {"w": spec}})()
    source = WeightSource(layout, lambda names: iter(yielded), memory)
    with pytest.raises(WeightSyncError, match=rf"expected tensor w \[2\] from the trained model; got {came}"):
        source.stage(Bucket(0, (spec,), 8))


def test_bucket_of_unknown_tensors_or_types_is_refused(tiny, memory, source_of):
    source = source_of(tiny(), memory)
    with pytest.raises(WeightSyncError, match="1 tensors that the trainer lacks: foreign"):
        source.stage(Bucket(0, (TensorSpec("foreign", "float32", (1,), 4),), 4))
    spec = source.layout.placements[0].tensor
    odd = TensorSpec(spec.name, "float9", spec.shape, spec.nbytes)
    with pytest.raises(WeightSyncError, match="got 'float9'"):
        source.stage(Bucket(0, (odd,), odd.nbytes))
