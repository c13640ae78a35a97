"""The live parameters of a served model, written and hashed in a bucket's byte order."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
import xxhash

from miles_core.weights.buffers import byte_view
from miles_core.weights.layout import view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from miles_core.types import Bucket, Layout


class LiveWeights:
    """Checkpoint tensors where a model holds them."""

    def __init__(self, layout: Layout, tensors: Mapping[str, torch.Tensor]) -> None:
        self.placements = {placement.tensor.name: placement for placement in layout.placements}
        self._tensors = tensors

    @property
    def present(self) -> bool:
        """Whether every tensor has its memory; an engine may have released it."""
        held = (self._tensors[placement.parameter] for placement in self.placements.values())
        return all(tensor.untyped_storage().nbytes() or not tensor.numel() for tensor in held)

    def write(self, bucket: Bucket, data: bytes | bytearray | memoryview) -> None:
        """Overwrite the bucket's tensors in place with its ``bucket.nbytes`` bytes."""
        if not bucket.nbytes:
            return
        # torch warns of read-only memory, although nothing writes to it here.
        writable = bytearray(data) if memoryview(data).readonly else data
        source = torch.frombuffer(writable, dtype=torch.uint8)
        offset = 0
        with torch.no_grad():
            for live in self._bytes(bucket):
                live.copy_(source[offset : offset + live.numel()])
                offset += live.numel()

    def checksum(self, bucket: Bucket) -> str:
        """The xxh3-128, in hex, of the bytes that the parameters hold now."""
        digest = xxhash.xxh3_128()
        for live in self._bytes(bucket):
            held = live.cpu()
            # not through numpy: torch never resizes a storage again that it has lent to numpy
            digest.update((ctypes.c_ubyte * held.numel()).from_address(held.data_ptr()))
        return digest.hexdigest()

    def _bytes(self, bucket: Bucket) -> Iterator[torch.Tensor]:
        return (byte_view(view(self._tensors, self.placements[spec.name])) for spec in bucket.tensors)
