"""Both ends of a weight transport, driven as a run drives them: what goes from one to the other is JSON text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from miles_core.errors import WeightSyncError
from miles_core.testing.weight_model import TABLE, make_buckets, payload_of, placements_of
from miles_core.types import Opening, StreamTargets
from miles_core.weights.buffers import byte_view, dtype_of
from miles_core.weights.live import LiveWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket


class ReceivingEnd:
    """An engine's end, with live parameters; ``base`` is the version that they hold whole."""

    def __init__(self, transport: WeightTransport) -> None:
        self.transport = transport
        self.base: int | None = None
        self.tensors = {row.name: torch.zeros(row.shape, dtype=dtype_of(row.dtype)) for row in TABLE.parameters}
        self._live = LiveWeights(TABLE, self.tensors)

    @property
    def writes_by_itself(self) -> bool:
        """Whether the transport writes into the parameters."""
        return hasattr(self.transport, "offer")

    def offer(self) -> dict[str, Any]:
        """What it says at the beginning of an update."""
        offer = getattr(self.transport, "offer", None)
        return {} if offer is None else _plain(offer(self.tensors))

    def receive(self, bucket: Bucket, delivery: Mapping[str, Any]) -> None:
        """Take one delivery.

        Raises:
            WeightSyncError: if the transport refuses it, or it changes weights that are not held.
        """
        if "base" in delivery and delivery["base"] != self.base:
            raise WeightSyncError(
                f"a delivery based on version {delivery['base']!r} came to one that holds {self.base}"
            )
        data = self.transport.receive(delivery, bucket, lambda: self._live.held(bucket))
        if data is None:
            return
        if (nbytes := memoryview(data).nbytes) != bucket.nbytes:
            raise WeightSyncError(f"receive() returned {nbytes} bytes of a bucket of {bucket.nbytes}")
        self._live.write(bucket, data)

    def held(self, bucket: Bucket) -> bytes:
        """What the parameters hold of a bucket."""
        return bytes(self._live.held(bucket))

    def wrong(self, version: int) -> list[int]:
        """The buckets whose bytes are not those of a version; -1 stands for the parameter that no bucket fills."""
        found = [bucket.index for bucket in make_buckets() if self.held(bucket) != payload_of(bucket, version)]
        return [*found, -1] if byte_view(self.tensors["kept"]).any() else found


class SendingEnd:
    """A trainer's end; deliveries that are not released are in ``held``."""

    def __init__(self, transport: WeightTransport) -> None:
        self.transport = transport
        self.held: list[tuple[Bucket, dict[str, Any]]] = []

    def open(self, version: int, offers: Sequence[Mapping[str, Any]], bases: Sequence[int | None]) -> None:
        """Begin an update of one stream."""
        begin = getattr(self.transport, "open", None)
        if begin is not None:
            target = StreamTargets(placements_of(make_buckets()), tuple(offers), tuple(bases))
            begin(Opening(version, (target,)))

    def send(self, bucket: Bucket, version: int) -> dict[str, Any]:
        """Offer a bucket; returns the delivery as it comes out of JSON.

        Raises:
            WeightSyncError: if it could not be brought to a receiver.
        """
        data = payload_of(bucket, version)
        reserve = getattr(self.transport, "buffer", None)
        payload = memoryview(bytearray(data)) if reserve is None else reserve(bucket)
        payload.cast("B")[:] = data
        delivery = _plain(self.transport.send(bucket, payload))
        if delivery.get("failed"):
            raise WeightSyncError(f"bucket {bucket.index} failed: {delivery['failed']}")
        self.held.append((bucket, delivery))
        return delivery

    def release(self) -> None:
        """Release all that is held, in order."""
        while self.held:
            self.transport.release(self.held.pop(0)[1])

    def publish(self, version: int, receivers: Sequence[ReceivingEnd]) -> None:
        """A whole update; each receiver then holds ``version``."""
        self.open(version, [one.offer() for one in receivers], [one.base for one in receivers])
        for bucket in make_buckets():
            delivery = self.send(bucket, version)
            for one in receivers:
                one.receive(bucket, delivery)
            self.release()
        for one in receivers:
            one.base = version


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dict(value)))
    return found
