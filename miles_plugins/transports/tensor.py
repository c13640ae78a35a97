"""The ``tensor`` transport: tensors in shared memory that stock SGLang opens by ``/update_weights_from_tensor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError
from miles_plugins.transports.shared_tensors import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import Bucket, Opening, PluginContext


class Tensor:
    """A delivery is ``{"tensors": name, "serialized": text}``: what each rank of SGLang unpickles.

    SGLang unpickles it, so engines must trust the trainer and whoever can reach their port; our own servers take none
    of it. Trainer and engines run on one host, share its ``/dev/shm`` and temporary folder, and use one version of
    torch. The bytes lie in the host's memory, whatever the engine's device. The trainer keeps them until it releases
    them.
    """

    sglang_update = "tensor"
    receivers = False
    reach = "host"

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""
        self._held: dict[str, SharedTensors] = {}
        self._readers = 0

    def open(self, opening: Opening) -> None:
        """Learn from ``opening.group["readers"]`` how many ranks will open each delivery."""
        self._readers = int(opening.group["readers"])

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Copy the payload into shared memory.

        Raises:
            WeightSyncError: if no update is open, the payload is not the bucket's size, it holds a part of a tensor,
                or shared memory is full or absent.
        """
        if not self._readers:
            raise WeightSyncError("the tensor transport must be opened for at least one engine before it sends")
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        if part := next((one for one in bucket.placements if one.region != one.tensor.whole), None):
            raise WeightSyncError(f"SGLang's loader takes whole tensors; bucket {bucket.index} holds {part.label}")
        shared = SharedTensors(bucket, payload.cast("B"))
        self._held[shared.name] = shared
        return {"tensors": shared.name, "serialized": shared.serialized(self._readers)}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free the delivery's memory.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        shared = self._held.pop(str(delivery.get("tensors")), None)
        if shared is None:
            raise WeightSyncError(f"this transport holds no tensors {delivery.get('tensors')!r} to release")
        shared.close()

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: object) -> bytes:
        """Refuse: only stock SGLang takes these.

        Raises:
            WeightSyncError: always.
        """
        raise WeightSyncError(
            "our servers take no pickled tensors", remedy='Set [weights] use = "memory" for engines with our receiver.'
        )

    def path(self) -> str:
        """Which way the bytes take."""
        return "shared memory"

    def close(self) -> None:
        """Free all that is left."""
        while self._held:
            self._held.popitem()[1].close()
