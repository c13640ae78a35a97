"""The live parameters of a served model, written, copied and hashed in a bucket's byte order."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import view
from miles_core.types.weights import ITEM_BYTES
from miles_core.weights.buffers import byte_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Bucket, ParameterTable, Placement


class LiveWeights:
    """Boxes of checkpoint tensors where a model holds them."""

    def __init__(self, table: ParameterTable, tensors: Mapping[str, torch.Tensor]) -> None:
        self._rows = {row.name: row for row in table.parameters}
        self._tensors = tensors

    @property
    def present(self) -> bool:
        """Whether every tensor has its memory; an engine may have released it."""
        held = (self._tensors[name] for name in self._rows)
        return all(tensor.untyped_storage().nbytes() or not tensor.numel() for tensor in held)

    def check(self, placement: Placement) -> None:
        """Refuse a box that does not lie in a parameter of this model.

        Raises:
            WeightSyncError: naming the parameter, and what it holds.
        """
        row = self._rows.get(placement.parameter)
        if row is None or row.dtype != placement.tensor.dtype or not _lies_in(placement, row.nbytes):
            expected = "no such parameter" if row is None else f"{row.dtype} {list(row.shape)}, {row.nbytes} bytes"
            raise WeightSyncError(
                f"{placement.label} ({placement.tensor.dtype}) does not fit bytes {placement.offset} to "
                f"{_end(placement)} of {placement.parameter}: this engine has {expected}",
                remedy="Plan again from this engine's layout.",
            )

    def write(self, bucket: Bucket, data: bytes | bytearray | memoryview) -> None:
        """Overwrite the bucket's boxes in place with its ``bucket.nbytes`` bytes."""
        if not bucket.nbytes:
            return
        # torch warns of read-only memory, although nothing writes to it here.
        writable = bytearray(data) if memoryview(data).readonly else data
        source = torch.frombuffer(writable, dtype=torch.uint8)
        offset = 0
        with torch.no_grad():
            for placement in bucket.placements:
                live = view(self._tensors, placement)
                part = source[offset : offset + placement.nbytes]
                offset += placement.nbytes
                if live.is_contiguous():
                    byte_view(live).copy_(part)
                else:
                    # a copy, because bytes of a bucket need not be aligned to the elements of every type
                    live.copy_(part.clone().view(live.dtype).view(live.shape))

    def held(self, bucket: Bucket) -> bytearray:
        """A copy of what the parameters hold now of the bucket, back to back."""
        copy = bytearray(bucket.nbytes)
        offset = 0
        for placement in bucket.placements:
            if placement.nbytes:
                target = torch.frombuffer(copy, dtype=torch.uint8, count=placement.nbytes, offset=offset)
                target.copy_(byte_view(view(self._tensors, placement).contiguous()))
            offset += placement.nbytes
        return copy

    def checksums(self, placements: Sequence[Placement]) -> list[str]:
        """The xxh3-128, in hex, of the bytes that the parameters hold now of each box."""
        return [self._checksum(placement) for placement in placements]

    def _checksum(self, placement: Placement) -> str:
        held = byte_view(view(self._tensors, placement).contiguous()).cpu()
        # not through numpy: torch never resizes a storage again that it has lent to numpy
        return xxhash.xxh3_128_hexdigest((ctypes.c_ubyte * held.numel()).from_address(held.data_ptr()))


def _lies_in(placement: Placement, size: int) -> bool:
    """Whether it is a box of its tensor, made of whole elements of a parameter of so many bytes."""
    whole, aligned = placement.tensor.shape, placement.offset % ITEM_BYTES[placement.tensor.dtype] == 0
    is_box = len(whole) == len(placement.region) and all(
        0 <= start <= stop <= length for (start, stop), length in zip(placement.region, whole, strict=True)
    )
    return is_box and aligned and 0 <= placement.offset <= _end(placement) <= size and not _overlaps(placement)


def _overlaps(placement: Placement) -> bool:
    """Whether two elements of the box may lie in one place: then it would fill less than it has."""
    extent = 1
    for stride, count in sorted(zip(placement.strides or (), placement.shape, strict=False)):
        if count > 1:
            if stride < extent:
                return True
            extent += (count - 1) * stride
    return False


def _end(placement: Placement) -> int:
    """The byte after the last one of the box."""
    if placement.strides is None or not placement.nbytes:
        return placement.offset + placement.nbytes
    if len(placement.strides) != len(placement.region) or min(placement.strides, default=0) < 0:
        return -1
    last = sum((n - 1) * stride for n, stride in zip(placement.shape, placement.strides, strict=True))
    return placement.offset + (last + 1) * ITEM_BYTES[placement.tensor.dtype]
