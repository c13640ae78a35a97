"""The ``disk`` transport: one safetensors file per bucket, in a folder that trainer and engines share."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import WeightSyncError
from miles_core.weights.api import read_bucket, write_bucket
from miles_plugins.transports.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import Bucket, PluginContext

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a place for temporary files
_FILE = re.compile(r".*/miles-weights-disk-[0-9a-f]{16}/bucket-\d+\.safetensors", re.DOTALL)


class Disk:
    """A delivery is ``{"file": path, "nbytes": n}``; the trainer owns the file until it releases it.

    Files that are held at the same time lie in one folder, which SGLang loads as a checkpoint. The folders of a trainer
    that was killed go when the next one begins to write in the same place.
    """

    sglang_update = "disk"

    class Config(BaseModel):
        """Options of ``[weights] use = "disk"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        dir: str | None = Field(
            None,
            min_length=1,
            description="folder that trainer and engines see, relative to the config file; default: /dev/shm if the "
            "model fits in twice, else weights/ in the run's folder",
        )

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._config = config
        self._context = context
        self._expected = 0
        self._folder: Scratch | None = None
        self._base: Path | None = None
        self._held: set[Path] = set()

    def expect(self, nbytes: int) -> None:
        """Look for a place with room for so many bytes: the whole model."""
        self._expected = nbytes

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Write the payload into a file.

        Raises:
            WeightSyncError: if the payload is not the bucket's size, or there is no room.
        """
        try:
            path = self._opened() / f"bucket-{bucket.index:05d}.safetensors"
            self._write(path, bucket, payload)
        except OSError as error:
            raise WeightSyncError(
                f"bucket {bucket.index} of {bucket.nbytes} bytes cannot be written: {error}",
                remedy="Free space there, or set [weights] dir to a folder with room that the engines see too.",
            ) from error
        return {"file": str(path), "nbytes": bucket.nbytes}

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Remove the delivery's file.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        path = Path(str(delivery.get("file")))
        if path not in self._held:
            raise WeightSyncError(f"this transport holds no file {delivery.get('file')!r} to release")
        self._remove(path)

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket) -> bytearray:
        """The bytes in the file.

        Raises:
            WeightSyncError: if the file is foreign, absent, cut short or holds another bucket.
        """
        file = delivery.get("file")
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            raise WeightSyncError(
                "a delivery must name a file .../miles-weights-disk-<16 hex digits>/bucket-<n>.safetensors; "
                f"got {file!r}"
            )
        try:
            return read_bucket(Path(file), bucket)
        except OSError as error:
            raise WeightSyncError(
                f"bucket {bucket.index} cannot be read: {error}",
                remedy="Set [weights] dir to a folder that trainer and engines share.",
            ) from error

    def close(self) -> None:
        """Remove every file that is left."""
        self._held.clear()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _opened(self) -> Path:
        """The folder of what is held now."""
        if self._folder is None:
            if self._base is None:
                self._base = self._find_base()
                self._context.logger.info("weights travel through files in %s", self._base)
            folder = Scratch(self._base)
            try:
                _check_room(folder.path, self._expected)
            except WeightSyncError:
                folder.close()
                raise
            self._folder = folder
        return self._folder.path

    def _write(self, path: Path, bucket: Bucket, payload: memoryview) -> None:
        if path in self._held:
            raise WeightSyncError(f"bucket {bucket.index} was sent before and is not released")
        self._held.add(path)
        try:
            write_bucket(path, bucket, payload)
        except BaseException:
            self._remove(path)
            raise

    def _find_base(self) -> Path:
        if self._config.dir is not None:
            return Path(self._context.services.get("base_dir", "."), Path(self._config.dir).expanduser()).resolve()
        if 2 * self._expected <= _memory_room():
            return _SHARED_MEMORY
        return Path(self._context.run_dir or tempfile.gettempdir(), "weights").resolve()

    def _remove(self, path: Path) -> None:
        self._held.discard(path)
        path.unlink(missing_ok=True)
        if not self._held:
            self.close()


def _memory_room() -> int:
    """Bytes that files in shared memory may still take."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        return min(kilobytes * 1024, shutil.disk_usage(_SHARED_MEMORY).free)
    except (OSError, StopIteration):
        return 0


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WeightSyncError(
            f"an update of {needed} bytes does not fit {folder}, where {free} are free",
            remedy="Free space there, or set [weights] dir to a folder with room that the engines see too.",
        )
