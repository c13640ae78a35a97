"""Weight transports: they move buckets of tensors from the trainer into engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types import Bucket


@runtime_checkable
class WeightTransport(Protocol):
    """Both ends of one way to move bytes; the trainer sends, each engine receives.

    A delivery is plain JSON that the driver carries from the sender to the receivers. Nothing is pickled. A transport
    whose deliveries SGLang's own endpoints can take has an attribute ``sglang_update``, the endpoint's kind:
    ``"disk"``.
    """

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Offer the bucket's bytes, called in the trainer; the payload holds ``bucket.nbytes`` bytes."""

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free what a delivery holds, called in the trainer after every receiver answered."""

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket) -> bytes | bytearray | memoryview:
        """The bucket's bytes, called in an engine.

        Raises:
            WeightSyncError: if they cannot be had whole.
        """

    def close(self) -> None:
        """Release everything."""


KIND = Kind(
    plural="weight_transports",
    singular="weight transport",
    summary="moves weights from the trainer into engines",
    table="[weights]",
    protocol=WeightTransport,
    members=("send", "release", "receive", "close"),
)
