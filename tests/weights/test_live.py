"""Live weights: written and hashed where they are, without taking anything from their owner."""

from __future__ import annotations

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import parameter_table
from miles_core.types import Bucket, Placement, TensorSpec
from miles_core.weights.live import LiveWeights

SPEC = TensorSpec("w", "float32", (2, 3))


def live_of(tensors: dict[str, torch.Tensor]) -> LiveWeights:
    return LiveWeights(parameter_table(tensors), tensors)


def test_hashing_leaves_the_storage_free_to_be_released() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    expected = xxhash.xxh3_128_hexdigest(tensor.clone().numpy().tobytes())
    live = live_of({"w": tensor})
    assert live.checksums([Placement(SPEC, SPEC.whole, "w", 0)]) == [expected]
    tensor.untyped_storage().resize_(0)
    assert not live.present


def test_a_strided_box_is_written_read_and_hashed_in_the_order_of_the_checkpoint_tensor() -> None:
    tensors = {"p": torch.zeros(3, 4)}
    transposed = Placement(SPEC, SPEC.whole, "p", 4, (1, 4))  # columns 1 and 2 are the rows of w
    bucket = Bucket(0, (transposed,), 24)
    live = live_of(tensors)
    values = torch.arange(1, 7, dtype=torch.float32)
    data = values.numpy().tobytes()
    live.write(bucket, data)
    assert tensors["p"].tolist() == [[0, 1, 4, 0], [0, 2, 5, 0], [0, 3, 6, 0]]
    assert live.held(bucket) == data
    assert live.checksums([transposed]) == [xxhash.xxh3_128_hexdigest(data)]


def test_a_strided_box_may_begin_anywhere_in_the_bytes_of_a_bucket() -> None:
    tensors = {"flag": torch.zeros(1, dtype=torch.bool), "p": torch.zeros(2, 2)}
    flag = Placement(TensorSpec("flag", "bool", (1,)), ((0, 1),), "flag", 0)
    spec = TensorSpec("w", "float32", (2, 2))
    bucket = Bucket(0, (flag, Placement(spec, spec.whole, "p", 0, (1, 2))), 17)
    data = b"\1" + torch.tensor([1.0, 2.0, 3.0, 4.0]).numpy().tobytes()
    live_of(tensors).write(bucket, data)
    assert (tensors["flag"].tolist(), tensors["p"].tolist()) == ([True], [[1, 3], [2, 4]])


@pytest.mark.parametrize(
    "placement",
    [
        Placement(SPEC, SPEC.whole, "other", 0),
        Placement(TensorSpec("w", "bfloat16", (2, 3)), SPEC.whole, "p", 0),
        Placement(SPEC, SPEC.whole, "p", 28),
        Placement(SPEC, SPEC.whole, "p", -4),
        Placement(SPEC, SPEC.whole, "p", 2),
        Placement(SPEC, SPEC.whole, "p", 12, (1, 4)),
        Placement(SPEC, SPEC.whole, "p", 40, (-3, 1)),
        Placement(SPEC, SPEC.whole, "p", 0, (1, -4)),
        Placement(SPEC, SPEC.whole, "p", 0, (1,)),
        Placement(SPEC, ((1, 0), (0, 3)), "p", 12),
        Placement(SPEC, ((2, 0), (3, 0)), "p", 0),
        Placement(SPEC, ((0, 3), (0, 3)), "p", 0),
        Placement(SPEC, ((0, 6),), "p", 0),
        Placement(SPEC, SPEC.whole, "p", 0, (0, 1)),
        Placement(SPEC, SPEC.whole, "p", 0, (2, 1)),
        Placement(SPEC, SPEC.whole, "p", 0, (1, 1)),
    ],
    ids=[
        "unknown parameter", "wrong type", "beyond the end", "before the start", "between elements",
        "strides beyond the end", "negative stride", "negative last stride", "too few strides", "negative size",
        "two negative sizes", "beyond its tensor", "too few dimensions", "stride of zero",
        "rows that overlap", "all that overlap",
    ],
)  # fmt: skip
def test_a_box_that_does_not_lie_in_a_parameter_is_refused(placement: Placement) -> None:
    tensors = {"p": torch.zeros(3, 4)}
    with pytest.raises(WeightSyncError, match=rf"does not fit bytes .* of {placement.parameter}: this engine has"):
        live_of(tensors).check(placement)


@pytest.mark.parametrize("strides", [None, (3, 1), (1, 2), (6, 2)])
def test_a_box_that_lies_in_a_parameter_is_taken(strides) -> None:
    live_of({"p": torch.zeros(3, 4)}).check(Placement(SPEC, SPEC.whole, "p", 0, strides))


def test_a_scalar_that_does_not_lie_in_a_parameter_is_refused_as_any_other() -> None:
    scalar = Placement(TensorSpec("w", "float32", ()), (), "p", 48, ())
    with pytest.raises(WeightSyncError, match="does not fit bytes 48 to 52 of p"):
        live_of({"p": torch.zeros(3, 4)}).check(scalar)
