"""Answers as ASGI messages: one JSON object, or server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import Send

    from miles_core.session.server.request import ClientError

_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def send_json(send: Send, status: int, content: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer with one JSON value."""
    body = json_bytes(content)
    sized = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})


def json_bytes(content: Any) -> bytes:
    """A value as JSON, in ASCII: lone surrogates, which clients may send and sessions keep, have no other form."""
    return json.dumps(content, allow_nan=False).encode()


class JsonResponse(Response):
    """One JSON value as a Starlette response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return json_bytes(content)


def error_headers(error: ClientError) -> list[tuple[bytes, bytes]]:
    """Headers of an answer beside its body."""
    headers = [] if error.retry_after is None else [(b"retry-after", str(error.retry_after).encode())]
    # the rest of a body that was refused may still be on its way
    return [*headers, (b"connection", b"close")] if error.status == 413 else headers


class EventStream:
    """Server-sent events; the answer starts with the first of them, so that what fails before has a status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, events: Iterable[bytes]) -> None:
        """Send events in one piece."""
        data = b"".join(events)
        if not data:
            return
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b""})
