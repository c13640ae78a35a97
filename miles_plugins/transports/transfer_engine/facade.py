"""The part of Mooncake's TransferEngine that is used, with the types that its module lacks."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Protocol

from miles_core.api import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Sequence


class TransferEngine(Protocol):
    """An instance of ``mooncake.engine.TransferEngine``; where a method returns a status, 0 is success."""

    def initialize(self, host: str, metadata: str, protocol: str, devices: str, /) -> int:
        """Open the ports at which peers reach this process; ``devices`` are names with commas between."""

    def get_rpc_port(self) -> int:
        """The port that a session is named by."""

    def get_local_topology(self) -> str:
        """JSON: by place of memory (``cpu:0``), the RDMA devices that are near and those that are far."""

    def register_memory(self, address: int, nbytes: int) -> int:
        """Let peers read and write this memory."""

    def unregister_memory(self, address: int) -> int:
        """Take back what began at this address."""

    def send_probe(self, session: str) -> int:
        """Ask a peer whether it is there; waits a minute for one that is stopped. Releases the GIL."""

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Write local memory into a peer's. Releases the GIL.

        The first one looks the peer up, and keeps the writes to all new peers waiting for a minute if it is stopped.
        """


def transfer_engine() -> TransferEngine:
    """A new engine, not yet initialized.

    Raises:
        WeightSyncError: if Mooncake is not installed.
    """
    engine: TransferEngine = _module().TransferEngine()
    return engine


def missing() -> str | None:
    """Why Mooncake cannot be loaded; ``None`` if it can."""
    try:
        _module()
    except WeightSyncError as error:
        return error.message
    return None


def takes_device_memory() -> bool:
    """Whether this build of Mooncake can register a GPU's memory."""
    return any(bool(getattr(_module(), f"SUPPORT_{kind}", False)) for kind in ("CUDA", "HIP", "MUSA"))


def _module() -> Any:
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # else it says eight lines of each engine
    try:
        return importlib.import_module("mooncake.engine")
    except ImportError as error:
        raise WeightSyncError(
            f"Mooncake cannot be loaded: {error}",
            remedy="Install miles-hub[mooncake-cpu], or miles-hub[mooncake] where CUDA is, and the system's libraries "
            "libibverbs1, libnuma1 and libcurl4.",
        ) from error
