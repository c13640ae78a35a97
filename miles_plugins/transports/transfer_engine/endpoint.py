"""This process among the peers of a transfer: its ports, its registered memory, its writes."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.facade import transfer_engine
from miles_plugins.transports.transfer_engine.memory import RegisteredMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_plugins.transports.transfer_engine.facade import TransferEngine
    from miles_plugins.transports.transfer_engine.wire import Wire

BATCH = 1024
"""Writes given to Mooncake at once: beyond 2048 waiting ones it refuses, and the peer stays out of reach for good."""

_PROGRESS = "MC_TCP_PROGRESS_TIMEOUT_SEC"
_environment = threading.Lock()


class Endpoint:
    """One TransferEngine, at ``host``; peers name it by its ``session``.

    Its ports listen on every address of the machine and ask for no password: whoever reaches them can write into the
    registered memory.
    """

    def __init__(self, wire: Wire, host: str) -> None:
        self._engine: TransferEngine = transfer_engine()
        status = _initialize(self._engine, wire, host)
        if status != 0:
            raise WeightSyncError(
                f"Mooncake cannot open its ports at {host} for {wire.path} (status {status})",
                remedy="Set [weights] host to an IPv4 address of this machine.",
            )
        self.wire = wire
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self.memory = RegisteredMemory(self._engine)

    def reach(self, session: str) -> bool:
        """Whether a peer answers, and look it up if so; may take a minute to find that it does not."""
        return (
            self._engine.send_probe(session) == 0 and self._engine.batch_transfer_sync_write(session, [], [], []) == 0
        )

    def write(self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> int:
        """Write into a peer's memory; how many writes were done before the batch that failed, or all of them."""
        for start in range(0, len(sources), BATCH):
            part = slice(start, start + BATCH)
            if self._engine.batch_transfer_sync_write(session, sources[part], targets[part], lengths[part]) != 0:
                return start
        return len(sources)

    def close(self) -> None:
        """Unregister all memory; the ports close as soon as no call is left."""
        self.memory.close()
        del self._engine


def patience(seconds: float | None) -> float:
    """Set after how many seconds without progress a write over TCP fails, and return it: for the whole process.

    Without a number it is what the environment says, else 10: Mooncake's own 30 keep the other engines waiting.

    Raises:
        WeightSyncError: if the environment says no number.
    """
    if seconds is None:
        text = os.environ.get(_PROGRESS) or "10"
        if not text.isdecimal() or int(text) == 0:
            raise WeightSyncError(f"{_PROGRESS} must be a number of seconds; got {text!r}")
        seconds = int(text)
    os.environ[_PROGRESS] = str(math.ceil(seconds))
    return seconds


def _initialize(engine: TransferEngine, wire: Wire, host: str) -> int:
    with _environment:
        forced = {"MC_FORCE_TCP": "1"} if wire.protocol == "tcp" else {}  # devices win over the word otherwise
        before = {name: os.environ.get(name) for name in forced}
        os.environ.update(forced)
        try:
            return engine.initialize(host, "P2PHANDSHAKE", wire.protocol, ",".join(wire.devices))
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
