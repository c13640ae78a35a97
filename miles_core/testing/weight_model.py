"""A small set of parameters with all that a weight transport may meet, and the bytes of its versions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from miles_core.types import Bucket, Parameter, ParameterTable, Placement, TensorSpec
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE = (1 << 20) + 3
_PLAIN = tuple(Parameter(f"plain.{dtype}", dtype, (n, 3)) for n, dtype in enumerate(sorted(ITEM_BYTES), 1))

TABLE = ParameterTable(
    (
        *_PLAIN,
        Parameter("scalar", "int64", ()),
        Parameter("empty", "float32", (0, 3)),
        Parameter("fused", "bfloat16", (6, 5)),
        Parameter("turned", "float32", (4, 3)),
        Parameter("large", "uint8", (LARGE,)),
        Parameter("kept", "float32", (9,)),
    )
)
"""Every type, a scalar, nothing at all, two tensors in one, one that lies transposed; no update ever fills ``kept``."""


def _whole(name: str, dtype: str, shape: tuple[int, ...], parameter: str | None = None, offset: int = 0) -> Placement:
    spec = TensorSpec(name, dtype, shape)
    return Placement(spec, spec.whole, parameter or name, offset)


def _bucket(index: int, *placements: Placement) -> Bucket:
    return Bucket(index, placements, sum(one.nbytes for one in placements))


def make_buckets() -> tuple[Bucket, ...]:
    """The buckets of one update: boxes of odd sizes that begin anywhere, one without a byte, and a large one."""
    by_name = {row.name: row for row in TABLE.parameters}
    whole = [_whole(row.name, row.dtype, row.shape) for row in (*_PLAIN, by_name["scalar"], by_name["empty"])]
    turned = TensorSpec("turned", "float32", (6, 4))
    parts = [
        _whole("up", "bfloat16", (2, 5), "fused"),
        _whole("gate", "bfloat16", (4, 5), "fused", 2 * 5 * 2),
        Placement(turned, ((2, 5), (0, 4)), "turned", 0, (1, 3)),
    ]
    nothing = TensorSpec("nothing", "float32", (4, 3))
    empty = Placement(nothing, ((2, 2), (0, 3)), "empty", 0)
    return _bucket(0, *whole), _bucket(1, empty), _bucket(2, *parts), _bucket(3, _whole("large", "uint8", (LARGE,)))


def payload_of(bucket: Bucket, version: int) -> bytes:
    """The bucket's bytes in a version; from one version to the next few bytes change."""
    data = bytearray(random.Random(bucket.index).randbytes(bucket.nbytes))  # noqa: S311 - test data
    for number in range(1, version + 1):
        draw = random.Random(1000 * bucket.index + number)  # noqa: S311
        for _ in range(len(data) // 200 + 1 if data else 0):
            data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    return bytes(data)


def placements_of(buckets: Sequence[Bucket]) -> tuple[Placement, ...]:
    """Those of all buckets."""
    return tuple(one for bucket in buckets for one in bucket.placements)
