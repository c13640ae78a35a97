"""Weight transports: they move buckets of tensors from the trainer into engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.types import Bucket


@runtime_checkable
class WeightTransport(Protocol):
    """Both ends of one way to move bytes; the trainer sends, each rank of an engine receives.

    A delivery is plain JSON that the driver carries from the sender to the receivers. Nothing is pickled. Class
    attributes say what a transport can do, all optional:

    * ``sglang_update``: what stock SGLang takes its deliveries by: ``"disk"``, ``"tensor"`` or ``"distributed"``.
    * ``receivers``: whether our receivers can take it; default true.
    * ``reach``: ``"host"`` (one machine), ``"folder"`` (a shared file system) or ``"network"``; default network.
    * ``unavailable()``, a class method: why it cannot be used in this process, or ``None``.

    Optional methods, called in the trainer: ``expect(nbytes)`` tells the size of the whole model, once;
    ``open(opening)`` begins an update, with an :class:`~miles_core.types.Opening`; ``buffer(bucket)`` lends writable
    memory that the payload is packed into, which saves a copy: ``send`` gets it next; ``path()`` says in words which
    way the bytes of the last update took, such as ``TCP`` or ``RDMA over mlx5_0``. In an engine:
    ``offer(tensors)`` gets the live parameters by name and returns JSON that the trainer's ``open`` sees. A transport
    that has it writes into the parameters by itself, from ``open`` on.
    """

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Offer the bucket's bytes, called in the trainer; the payload holds ``bucket.nbytes`` bytes.

        A delivery with the key ``"base"`` may be applied to weights of that version only. One that could not be brought
        to some receivers of its stream says so: ``"failed": {"<number of the receiver>": reason}``.
        """

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free what a delivery holds, called in the trainer after every receiver answered."""

    def receive(
        self, delivery: Mapping[str, Any], bucket: Bucket, held: Callable[[], bytearray]
    ) -> bytes | bytearray | memoryview | None:
        """The bucket's bytes, called in an engine; ``None`` if they lie in the live parameters already.

        ``held()`` copies what the parameters hold now of the bucket.

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
