"""What has arrived of an open update: boxes without a byte are in no one's way."""

from __future__ import annotations

import pytest
import torch

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import parameter_table
from miles_core.types import Bucket, Placement, TensorSpec
from miles_core.weights.live import LiveWeights
from miles_core.weights.update import OpenUpdate

TENSORS = {"p": torch.zeros(2, 3)}
TABLE = parameter_table(TENSORS)


def box(name: str, rows: int) -> Placement:
    spec = TensorSpec(name, "float32", (rows, 3))
    return Placement(spec, spec.whole, "p", 0)


def take(*buckets: Bucket) -> OpenUpdate:
    update = OpenUpdate(1, None, None)
    for bucket in buckets:
        update.check(bucket, LiveWeights(TABLE, TENSORS))
        update.add(bucket)
    return update


@pytest.mark.parametrize("names", [("none", "w", "nothing"), ("w", "none", "nothing"), ("none", "nothing", "w")])
def test_empty_boxes_may_lie_where_another_one_begins(names) -> None:
    rows = {"none": 0, "nothing": 0, "w": 2}
    boxes = [box(name, rows[name]) for name in names]
    take(Bucket(0, tuple(boxes), 24)).check_whole(TABLE, 0)
    take(*(Bucket(index, (one,), one.nbytes) for index, one in enumerate(boxes))).check_whole(TABLE, 0)


def test_two_boxes_that_begin_in_one_place_are_refused() -> None:
    with pytest.raises(WeightSyncError, match="bucket 1 of version 1 repeats tensor w"):
        take(Bucket(0, (box("v", 1),), 12), Bucket(1, (box("w", 2),), 24))
