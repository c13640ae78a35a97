"""ASGI in process: an app that answers by script, and a client that reads message by message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]


def http_scope(method: str = "POST", path: str = "/generate", query: str = "", headers: Headers | None = None) -> Scope:
    """The scope of one request, as a server makes it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"router.test"), *(headers or [])],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


@dataclass
class Answer:
    """What a client received: status, headers and the body's chunks."""

    status: int = 0
    headers: Headers = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        """All chunks joined."""
        return b"".join(self.chunks)

    def add(self, message: Message) -> None:
        """Take the next message of a response."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if message.get("body"):
                self.chunks.append(bytes(message["body"]))
            self.complete = not message.get("more_body", False)


async def request(app: ASGIApp, scope: Scope, body: Sequence[bytes] = (b"",)) -> Answer:
    """Send one request, its body in chunks, and read the whole answer; the client stays connected."""
    answer = Answer()
    parts = [{"type": "http.request", "body": part, "more_body": n + 1 < len(body)} for n, part in enumerate(body)]
    waiting = iter(parts)

    async def receive() -> Message:
        part = next(waiting, None)
        if part is None:  # as a server does: nothing more comes until the client leaves
            await anyio.sleep_forever()
        assert part is not None
        return part

    async def send(message: Message) -> None:
        answer.add(message)

    await app(scope, receive, send)
    return answer


class Echo:
    """Answers 200 with the request's body, and remembers what it saw."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        self.scopes.append(scope)
        body = await read_body(receive)
        self.bodies.append(body)
        await anyio.lowlevel.checkpoint()
        await respond(send, 200, [(b"content-type", b"application/json")], body)


async def read_body(receive: Receive) -> bytes:
    """The body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """One whole response."""
    sized = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})
