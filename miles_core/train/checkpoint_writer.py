"""Checkpoints off the training path: a thread writes while training goes on."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Protocol

from miles_core.train.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_core.kinds.train_backends import ModelSnapshot


class Snapshotting(Protocol):
    """A train backend, as the writer needs it."""

    def snapshot(self) -> ModelSnapshot:
        """Copy the present state; the copy writes itself."""


class CheckpointWriter:
    """Writes one checkpoint at a time; the error of a failed one is raised once, by the next call of any method.

    The thread is no daemon: a process that ends in order finishes the checkpoint.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(self, path: Path, backend: Snapshotting, files: Mapping[str, bytes], *, keep: int = 0) -> None:
        """Wait for the checkpoint before, copy the present state, and begin to write it.

        Only one copy is in memory at a time. See :func:`~miles_core.train.checkpoint.write_checkpoint` for the rest.

        Raises:
            CheckpointError: if the one before failed; this one is not begun.
        """
        self.wait()
        self._thread = Thread(
            target=self._write, args=(path, backend.snapshot(), files, keep), name=f"checkpoint {path.name}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            CheckpointError: if the checkpoint failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def poll(self) -> bool:
        """Whether a checkpoint is being written.

        Raises:
            CheckpointError: if it failed.
        """
        if self._thread is not None and self._thread.is_alive():
            return True
        self.wait()
        return False

    def _write(self, path: Path, snapshot: ModelSnapshot, files: Mapping[str, bytes], keep: int) -> None:
        try:
            write_checkpoint(path, snapshot, files, nbytes=snapshot.nbytes, keep=keep)
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._error = error
