"""One small RPC between the driver and the trainer process: calls by name over a socket pair.

Both ends are this program's own processes on one machine, so messages are pickled; nothing else may connect.
"""

from __future__ import annotations

import logging
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from miles_core.errors import MilesError, TrainError

if TYPE_CHECKING:
    import socket

logger = logging.getLogger("miles.trainer")


class RemoteCaller:
    """The driver's end; one call at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end.detach())
        self._lock = anyio.Lock()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the remote object.

        Raises:
            MilesError: what the remote raised, or a TrainError if it is gone.
        """
        async with self._lock:
            try:
                await to_thread.run_sync(self._connection.send, (method, arguments), abandon_on_cancel=True)
                ok, value = await to_thread.run_sync(self._connection.recv, abandon_on_cancel=True)
            except (EOFError, OSError) as error:
                raise TrainError(f"the trainer is gone during {method}()", remedy="Read logs/trainer.log.") from error
        if ok:
            return value
        raise value

    def close(self) -> None:
        """Hang up, which ends the trainer's loop."""
        self._connection.close()


def serve(end: socket.socket, target: object) -> None:
    """The trainer's end: answer calls to ``target`` until the driver hangs up."""
    connection = Connection(end.detach())
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = True, getattr(target, method)(*arguments)
        except MilesError as error:
            reply = False, error
        except Exception as error:  # noqa: BLE001 - the driver decides what an unknown failure means
            logger.error("%s() failed:\n%s", method, traceback.format_exc())
            reply = False, TrainError(f"{method}() failed: {type(error).__name__}: {error}")
        connection.send(reply)
