"""The ``disk`` transport: one safetensors file per bucket, in a folder that trainer and engines share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError
from miles_core.weights.api import read_bucket, write_bucket
from miles_plugins.transports.shared_folder import FolderConfig, SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.api import Bucket, PluginContext


class Disk:
    """A delivery is ``{"file": path, "nbytes": n}``; files that are held together load as a checkpoint in SGLang."""

    sglang_update = "disk"
    reach = "folder"

    class Config(FolderConfig):
        """Options of ``[weights] use = "disk"``."""

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._files = SharedFolder(config.dir, context, suffix="safetensors", whole=True)

    def expect(self, nbytes: int) -> None:
        """Look for a place with room for so many bytes: the whole model."""
        self._files.expect(nbytes)

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Write the payload into a file.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or there is no room.
        """
        file = self._files.write(bucket, lambda path: write_bucket(path, bucket, payload))
        return {"file": file, "nbytes": bucket.nbytes}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Remove the delivery's file.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        self._files.release(delivery)

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: Callable[[], bytearray]) -> bytearray:
        """The bytes in the file.

        Raises:
            WeightSyncError: if the file is foreign, absent, cut short or holds another bucket.
        """
        path = self._files.path_of(delivery)
        try:
            return read_bucket(path, bucket)
        except OSError as error:
            raise WeightSyncError(
                f"bucket {bucket.index} cannot be read: {error}",
                remedy="Set [weights] dir to a folder that trainer and engines share.",
            ) from error

    def close(self) -> None:
        """Remove every file that is left."""
        self._files.close()
