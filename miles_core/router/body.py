"""A client's request body: whole when it is small, otherwise a stream that can be sent once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TypeAlias

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive

Payload: TypeAlias = "bytes | io.BytesIO | AsyncIterator[bytes] | None"

# aiohttp writes plain bytes in one go, which holds up the event loop when there are many.
_LARGE = 1 << 20


class ClientDisconnected(Exception):  # noqa: N818 - an event, not a fault
    """The client left before it had sent its whole request."""


class RequestBody:
    """The start of a body, or all of it if ``complete``."""

    __slots__ = ("_chunks", "_consumed", "_receive", "complete")

    def __init__(self, chunks: list[bytes], receive: Receive, *, complete: bool) -> None:
        self._chunks = chunks
        self._receive = receive
        self._consumed = None if complete else anyio.Event()
        self.complete = complete

    @classmethod
    async def read(cls, receive: Receive, limit: int) -> RequestBody:
        """Read until the body ends or holds more than ``limit`` bytes.

        Raises:
            ClientDisconnected: if the client leaves.
        """
        chunks: list[bytes] = []
        size, more = 0, True
        while more and size <= limit:
            chunk, more = await _next_chunk(receive)
            chunks.append(chunk)
            size += len(chunk)
        return cls(chunks, receive, complete=not more)

    def payload(self) -> Payload:
        """What aiohttp sends; may be asked for again only if the body is ``complete``."""
        if not self.complete:
            return self._stream()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        return io.BytesIO(data) if len(data) > _LARGE else data or None

    async def disconnected(self) -> None:
        """Return once the client has left; begins to listen when the body has been sent on."""
        if self._consumed is not None:
            await self._consumed.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _stream(self) -> AsyncIterator[bytes]:
        assert self._consumed is not None
        try:
            for chunk in self._chunks:
                yield chunk
            self._chunks.clear()
            more = True
            while more:
                chunk, more = await _next_chunk(self._receive)
                yield chunk
        finally:
            self._consumed.set()


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)
