"""Both ends of the in-memory weight transport."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.testing.make import make_plugin
from miles_core.types import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.kinds.weight_transports import WeightTransport


@dataclass(frozen=True)
class TransportPair:
    """The trainer's end and an engine's end of one transport."""

    sender: WeightTransport
    receiver: WeightTransport

    def carry(self, payload: bytes, *, index: int = 0) -> bytes:
        """Send one bucket through, and release it."""
        bucket = Bucket(index, (), len(payload))
        delivery = self.sender.send(bucket, memoryview(payload))
        received = bytes(self.receiver.receive(delivery, bucket, lambda: bytearray(len(payload))) or b"")
        self.sender.release(delivery)
        return received


@contextmanager
def open_pair() -> Iterator[TransportPair]:
    """Both ends of ``memory``, closed at the end."""
    sender, receiver = (make_plugin("weight_transports", "miles-hub/memory") for _ in range(2))
    try:
        yield TransportPair(sender, receiver)
    finally:
        receiver.close()
        sender.close()
