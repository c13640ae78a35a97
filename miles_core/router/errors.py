"""Answers that the router gives itself, as ASGI messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Message, Send


def error_answer(
    status: int, kind: str, message: str, remedy: str | None, headers: Sequence[tuple[bytes, bytes]] = ()
) -> list[Message]:
    """A JSON answer ``{"error": {"type", "message", "remedy"}}``."""
    body = json.dumps({"error": {"type": kind, "message": message, "remedy": remedy}}).encode()
    length = str(len(body)).encode()
    return [
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), (b"content-length", length), *headers],
        },
        {"type": "http.response.body", "body": body},
    ]


async def send_all(messages: Sequence[Message], send: Send) -> None:
    """Send messages in order."""
    for message in messages:
        await send(message)
