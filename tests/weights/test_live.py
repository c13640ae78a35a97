"""Live weights: hashed where they are, without taking anything from their owner."""

from __future__ import annotations

import torch
import xxhash

from miles_core.types import Bucket, Layout, Placement, TensorSpec
from miles_core.weights.live import LiveWeights


def test_hashing_leaves_the_storage_free_to_be_released() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    expected = xxhash.xxh3_128_hexdigest(tensor.clone().numpy().tobytes())
    spec = TensorSpec("w", "float32", (2, 3), 24)
    live = LiveWeights(Layout((Placement(spec, "w", 0),)), {"w": tensor})
    assert live.checksum(Bucket(0, (spec,), 24)) == expected
    tensor.untyped_storage().resize_(0)
    assert not live.present
