"""The highest policy version that an engine of a run may have heard of: versions only grow, over restarts too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "weights"
FILE = "version"


class VersionMark:
    """The file ``weights/version`` of a run, which is on the disk before an engine is told of a version.

    Engines may outlive the driver, and refuse versions below their own.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FOLDER / FILE
        self._written: int | None = None

    def read(self) -> int | None:
        """The highest version; ``None`` if there was none yet.

        Raises:
            CheckpointError: if the file holds no version.
        """
        try:
            version = int(self._path.read_text("ascii"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from error
        if version < 0:
            raise self._damaged(f"it holds {version}")
        return version

    def raise_to(self, version: int) -> None:
        """Make it at least ``version``; what is written survives a crash of the machine.

        Raises:
            CheckpointError: if it cannot be written.
        """
        if self._written is None:
            self._written = self.read()
        if self._written is not None and version <= self._written:
            return
        try:
            self._path.parent.mkdir(exist_ok=True)
            _write_through(self._path, f"{version}\n")
        except OSError as error:
            raise CheckpointError(
                f"version {version} cannot be noted in {self._path}: {error.strerror}",
                remedy="Make the run's folder writable, and free space on its disk.",
            ) from error
        self._written = version

    def _damaged(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} must hold a policy version, a number from 0 on; {reason}",
            remedy="Write the highest weights/version of metrics.jsonl, plus 1, into it.",
        )


def _write_through(path: Path, text: str) -> None:
    """Whole or not at all, and not lost when the machine stops."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
