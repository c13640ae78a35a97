"""Files that a trainer writes for a short while into a folder that its engines see too."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import WeightSyncError
from miles_plugins.transports.scratch import Scratch
from miles_plugins.transports.shared_memory import SHARED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.api import Bucket, PluginContext

_ROOM = "Free space there, or set [weights] dir to a folder with room that the engines see too."


class FolderConfig(BaseModel):
    """The options of every transport that uses a :class:`SharedFolder`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dir: str | None = Field(
        None,
        min_length=1,
        description="folder that trainer and engines see, relative to the config file; default: /dev/shm if the "
        "model fits in twice, else weights/ in the run's folder",
    )


class SharedFolder:
    """Holds one file ``bucket-<index>.<suffix>`` per bucket until it is released; the trainer owns them.

    Files that are held at the same time lie in one folder, which goes with the last of them. The folders of a trainer
    that was killed go when the next one begins to write in the same place. ``whole``: all buckets of a model will be
    held together, so there must be room for all of it before the first.
    """

    def __init__(self, dir: str | None, context: PluginContext, *, suffix: str, whole: bool) -> None:  # noqa: A002
        self._dir = dir
        self._context = context
        self._suffix = suffix
        self._whole = whole
        self._file = re.compile(rf".*/miles-weights-disk-[0-9a-f]{{16}}/bucket-\d+\.{suffix}", re.DOTALL)
        self._expected = 0
        self._folder: Scratch | None = None
        self._base: Path | None = None
        self._held: set[Path] = set()

    def expect(self, nbytes: int) -> None:
        """Look for a place with room for so many bytes: the whole model."""
        self._expected = nbytes

    def write(self, bucket: Bucket, writer: Callable[[Path], None]) -> str:
        """Have the bucket's file written, and hold it; returns its path.

        Raises:
            WeightSyncError: if the bucket is held already, or there is no room.
        """
        try:
            path = self._opened() / f"bucket-{bucket.index:05d}.{self._suffix}"
            if path in self._held:
                raise WeightSyncError(f"bucket {bucket.index} was sent before and is not released")
            self._held.add(path)
            try:
                writer(path)
            except BaseException:
                self._remove(path)
                raise
        except OSError as error:
            raise WeightSyncError(
                f"bucket {bucket.index} of {bucket.nbytes} bytes cannot be written: {error}", remedy=_ROOM
            ) from error
        return str(path)

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Remove the delivery's file.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        path = Path(str(delivery.get("file")))
        if path not in self._held:
            raise WeightSyncError(f"this transport holds no file {delivery.get('file')!r} to release")
        self._remove(path)

    def path_of(self, delivery: Mapping[str, Any]) -> Path:
        """The file that a delivery names.

        Raises:
            WeightSyncError: if no trainer's end of this transport would name it so.
        """
        file = delivery.get("file")
        if not isinstance(file, str) or not self._file.fullmatch(file):
            raise WeightSyncError(
                f"a delivery must name a file .../miles-weights-disk-<16 hex digits>/bucket-<n>.{self._suffix}; "
                f"got {file!r}"
            )
        return Path(file)

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
                _check_room(folder.path, self._expected if self._whole else 0)
            except WeightSyncError:
                folder.close()
                raise
            self._folder = folder
        return self._folder.path

    def _find_base(self) -> Path:
        if self._dir is not None:
            return Path(self._context.services.get("base_dir", "."), Path(self._dir).expanduser()).resolve()
        if 2 * self._expected <= _memory_room():
            return SHARED_MEMORY
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
        return min(kilobytes * 1024, shutil.disk_usage(SHARED_MEMORY).free)
    except (OSError, StopIteration):
        return 0


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WeightSyncError(f"an update of {needed} bytes does not fit {folder}, where {free} are free", remedy=_ROOM)
