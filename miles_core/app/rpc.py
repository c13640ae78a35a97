"""One small RPC between the driver and the trainer process: calls by name over a socket pair.

Both ends are this program's own processes on one machine, so messages are pickled; nothing else may connect. A message
is its length in 8 bytes and a pickle: ``(number, method, arguments)`` one way, ``(number, ok, value)`` the other.
"""

from __future__ import annotations

import logging
import pickle
import struct
import traceback
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
from anyio import to_thread

from miles_core.errors import MilesError, TrainError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

logger = logging.getLogger("miles.trainer")

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class RemoteCaller:
    """The driver's end; one call at a time.

    A cancelled call still runs at the trainer. What is left of its message goes out, and its reply is skipped, before
    the next call's: numbers tell replies apart, and half a message waits in a buffer rather than in a thread.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = anyio.Lock()
        self._numbers = count()
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the remote object.

        Raises:
            MilesError: what the remote raised, or a TrainError if it is gone.
        """
        number = next(self._numbers)
        message = await to_thread.run_sync(_packed, (number, method, arguments))
        async with self._lock:
            try:
                await self._flush()
                self._outgoing = memoryview(message)
                await self._flush()
                answered, ok, value = await self._receive()
                while answered != number:
                    answered, ok, value = await self._receive()
            except (EOFError, OSError, anyio.ClosedResourceError) as error:
                raise TrainError(f"the trainer is gone during {method}()", remedy="Read logs/trainer.log.") from error
        if ok:
            return value
        raise value

    def close(self) -> None:
        """Hang up, which ends the trainer's loop and a call that still waits."""
        if self._lock.locked():
            anyio.notify_closing(self._socket)
        self._socket.close()

    async def _flush(self) -> None:
        while self._outgoing:
            await self._until(anyio.wait_writable)
            self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]

    async def _receive(self) -> tuple[int, bool, Any]:
        await self._fill(_LENGTH.size)
        end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
        await self._fill(end)
        data = bytes(memoryview(self._incoming)[_LENGTH.size : end])
        del self._incoming[:end]
        reply: tuple[int, bool, Any] = await to_thread.run_sync(pickle.loads, data)
        return reply

    async def _fill(self, size: int) -> None:
        while len(self._incoming) < size:
            await self._until(anyio.wait_readable)
            chunk = self._socket.recv(_CHUNK)
            if not chunk:
                raise EOFError
            self._incoming += chunk

    async def _until(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self._socket.fileno() < 0:
            raise EOFError
        await ready(self._socket)


def serve(end: socket.socket, target: object) -> None:
    """The trainer's end: answer calls to ``target`` until the driver hangs up."""
    with end, end.makefile("rb") as stream, suppress(EOFError, OSError):
        while True:
            (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
            number, method, arguments = pickle.loads(_read(stream, length))  # noqa: S301 - from our own driver
            end.sendall(_packed((number, *_answer(target, method, arguments))))


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _answer(target: object, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, getattr(target, method)(*arguments)
    except MilesError as error:
        return False, error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the driver decides what an unknown failure means
        logger.error("%s() failed:\n%s", method, traceback.format_exc())
        return False, TrainError(f"{method}() failed: {type(error).__name__}: {error}")


def _packed(message: tuple[Any, ...]) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
