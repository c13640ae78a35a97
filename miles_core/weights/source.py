"""The trainer's end: checkpoint tensors become the bytes of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.weights.buffers import byte_view, dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket, Layout, TensorSpec


class WeightSource:
    """Stages buckets of the trained model; ``tensors(names)`` yields ``(name, tensor)`` in the order asked for.

    A transport that has a method ``expect(nbytes)`` is told the size of the whole model.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Callable[[Sequence[str]], Iterator[tuple[str, torch.Tensor]]],
        transport: WeightTransport,
    ) -> None:
        self.layout = layout
        self._tensors = tensors
        self._transport = transport
        if (expect := getattr(transport, "expect", None)) is not None:
            expect(sum(spec.nbytes for spec in layout.tensors.values()))

    def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], str]:
        """Cast and pack the bucket, hand it to the transport, return its delivery and its xxh3-128 in hex.

        Raises:
            WeightSyncError: if the model lacks one of its tensors or has another shape, or the transport cannot send.
        """
        payload = self._packed(bucket).numpy().data
        checksum = xxhash.xxh3_128_hexdigest(payload)
        return self._transport.send(bucket, payload), checksum

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free what the delivery holds."""
        self._transport.release(delivery)

    def _packed(self, bucket: Bucket) -> torch.Tensor:
        self._check_known(bucket)
        packed = torch.empty(bucket.nbytes, dtype=torch.uint8)
        pairs = self._tensors([spec.name for spec in bucket.tensors])
        offset = 0
        for spec in bucket.tensors:
            data = byte_view(_cast(spec, *next(pairs, (None, None))))
            packed[offset : offset + spec.nbytes].copy_(data)
            offset += spec.nbytes
        return packed

    def _check_known(self, bucket: Bucket) -> None:
        known = self.layout.tensors
        unknown = [spec.name for spec in bucket.tensors if spec.name not in known]
        if unknown:
            raise WeightSyncError(
                f"bucket {bucket.index} holds {len(unknown)} tensors that the trainer lacks: {', '.join(unknown[:3])}",
                remedy="Plan again from the trainer's present layout.",
            )
        if bucket.nbytes != sum(spec.nbytes for spec in bucket.tensors):
            raise WeightSyncError(f"bucket {bucket.index} says {bucket.nbytes} bytes; its tensors have another sum")


def _cast(spec: TensorSpec, name: str | None, tensor: torch.Tensor | None) -> torch.Tensor:
    """The tensor as the bucket wants it, contiguous on the CPU."""
    if tensor is None or name != spec.name or tuple(tensor.shape) != spec.shape:
        came = "nothing" if tensor is None else f"{name} {list(tensor.shape)}"
        raise WeightSyncError(f"expected tensor {spec.name} {list(spec.shape)} from the trained model; got {came}")
    cast = tensor.detach().to(device="cpu", dtype=dtype_of(spec.dtype)).contiguous()
    if cast.nbytes != spec.nbytes:
        raise WeightSyncError(f"tensor {spec.name} has {cast.nbytes} bytes as {spec.dtype}, not {spec.nbytes}")
    return cast
