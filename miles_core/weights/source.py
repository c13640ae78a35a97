"""The trainer's end: boxes of checkpoint tensors become the bytes of a bucket."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import view
from miles_core.lib.layout.cut import is_inside
from miles_core.weights.buffers import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket, Layout, Opening, Placement


_LARGE = 1 << 20
"""Bytes from which a second thread pays."""


class WeightSource:
    """Stages buckets of the trained model, one update at a time.

    ``tensors()`` gives its parameters and persistent buffers by name, ``transports`` makes a transport by its name, and
    ``digest`` a checksum of bytes. Large boxes are hashed by a second thread while the next ones are packed.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Callable[[], Mapping[str, torch.Tensor]],
        transports: Callable[[str], WeightTransport],
        digest: Callable[[memoryview], str] = xxhash.xxh3_128_hexdigest,
    ) -> None:
        self.layout = layout
        self._boxes = {placement.tensor.name: placement for placement in layout.placements}
        self._tensors = tensors
        self._make = transports
        self._digest = digest
        self._hashing = ThreadPoolExecutor(1, "weights-hash")
        self._transports: dict[str, WeightTransport] = {}
        self._current: WeightTransport | None = None

    def open(self, transport: str, opening: Opening) -> None:
        """Begin an update whose buckets go by ``transport``.

        Raises:
            PluginError: if there is none of that name.
            WeightSyncError: if it cannot reach the receivers.
        """
        self._current = self._transport(transport)
        if (begin := getattr(self._current, "open", None)) is not None:
            begin(opening)

    def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Cast and pack the bucket and hand it to the transport; returns its delivery and the xxh3-128 of each box.

        Raises:
            WeightSyncError: if the model lacks one of its boxes, or the transport cannot send.
        """
        transport = self._opened()
        self._check(bucket)
        reserve = getattr(transport, "buffer", None)
        payload = memoryview(bytearray(bucket.nbytes)) if reserve is None else reserve(bucket)
        checksums = self._pack(bucket, payload)
        return transport.send(bucket, payload), checksums

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free what the delivery holds."""
        self._opened().release(delivery)

    def path(self) -> str:
        """Which way the bytes of the last update took, in words; empty if the transport does not say."""
        said = getattr(self._current, "path", None)
        return "" if said is None else str(said())

    def close(self) -> None:
        """Close all transports."""
        self._hashing.shutdown()
        self._current = None
        while self._transports:
            self._transports.popitem()[1].close()

    def _transport(self, name: str) -> WeightTransport:
        if name not in self._transports:
            made = self._transports[name] = self._make(name)
            if (expect := getattr(made, "expect", None)) is not None:
                expect(sum(spec.nbytes for spec in self.layout.tensors.values()))
        return self._transports[name]

    def _opened(self) -> WeightTransport:
        if self._current is None:
            raise WeightSyncError("no update is open in the trainer", remedy="Open one first.")
        return self._current

    def _check(self, bucket: Bucket) -> None:
        unknown = [one.label for one in bucket.placements if not self._has(one)]
        if unknown:
            raise WeightSyncError(
                f"bucket {bucket.index} holds {len(unknown)} tensors that the trainer lacks: {', '.join(unknown[:3])}",
                remedy="Plan again from the trainer's present layout.",
            )
        if bucket.nbytes != sum(one.nbytes for one in bucket.placements):
            raise WeightSyncError(f"bucket {bucket.index} says {bucket.nbytes} bytes; its tensors have another sum")

    def _has(self, wanted: Placement) -> bool:
        mine = self._boxes.get(wanted.tensor.name)
        return mine is not None and mine.tensor.shape == wanted.tensor.shape and is_inside(wanted.region, mine.region)

    def _pack(self, bucket: Bucket, payload: memoryview) -> tuple[str, ...]:
        tensors = self._tensors()
        checksums: list[str | Future[str]] = []
        offset = 0
        for wanted in bucket.placements:
            part = payload[offset : offset + wanted.nbytes]
            if part.nbytes:
                self._copy(tensors, wanted, part)
            is_large = part.nbytes >= _LARGE
            checksums.append(self._hashing.submit(self._digest, part) if is_large else self._digest(part))
            offset += wanted.nbytes
        return tuple(one if isinstance(one, str) else one.result() for one in checksums)

    def _copy(self, tensors: Mapping[str, torch.Tensor], wanted: Placement, part: memoryview) -> None:
        mine = self._boxes[wanted.tensor.name]
        source = view(tensors, mine)
        for dim, ((start, stop), (origin, _)) in enumerate(zip(wanted.region, mine.region, strict=True)):
            source = source.narrow(dim, start - origin, stop - start)
        target = torch.frombuffer(part, dtype=torch.uint8).view(dtype_of(wanted.tensor.dtype)).view(wanted.shape)
        target.copy_(source)
