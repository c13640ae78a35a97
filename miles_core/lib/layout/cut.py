"""A part of a placement, cut out where the shards of those who send it meet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.lib.layout.build import is_packed, row_major
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from miles_core.types import Placement, Region


def cut_placement(placement: Placement, region: Region) -> Placement:
    """Where ``region``, a box inside that of the placement, lies in its parameter."""
    if region == placement.region:
        return placement
    strides = row_major(placement.shape) if placement.strides is None else placement.strides
    ahead = sum(
        (start - origin) * stride
        for (start, _), (origin, _), stride in zip(region, placement.region, strides, strict=True)
    )
    offset = placement.offset + ahead * ITEM_BYTES[placement.tensor.dtype]
    shape = tuple(stop - start for start, stop in region)
    return replace(placement, region=region, offset=offset, strides=None if is_packed(shape, strides) else strides)


def is_inside(region: Region, outer: Region) -> bool:
    """Whether ``region`` lies in ``outer`` whole; both are boxes of one tensor."""
    return len(region) == len(outer) and all(
        first <= start and stop <= last for (start, stop), (first, last) in zip(region, outer, strict=True)
    )
