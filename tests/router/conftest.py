"""Real servers on loopback: scripted workers, broken ones, and the router in front of them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import pytest

from miles_core.router.app import create_app
from miles_core.router.settings import RouterSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@dataclass(frozen=True)
class Seen:
    """One request as a worker received it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


class Worker:
    """An engine that gives ``answers`` in turn, the last one for ever: ``(status, headers, body)`` or an ASGI app."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [(200, {}, b'{"text": "ok"}')]
        self.seen: list[Seen] = []
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        target = f"{scope['raw_path'].decode()}?{scope['query_string'].decode()}".rstrip("?")
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        self.seen.append(Seen(scope["method"], target, headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(scope, receive, send)
            return
        status, extra, content = answer
        pairs = {"content-length": str(len(content)), **extra}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})


class RawWorker:
    """Writes ``answer`` byte for byte and closes, whatever it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.url = ""
        self.attempts = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.attempts += 1
        writer.write(self.answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


class Rig:
    """Starts what a test needs; all of it stops with the test."""

    def __init__(self, stack: AsyncExitStack, serving: Callable[..., Any], client: aiohttp.ClientSession) -> None:
        self._stack = stack
        self._serving = serving
        self._servers: list[Any] = []
        self.client = client

    async def _serve(self, app: Any, port: int = 0) -> str:
        server = await self._stack.enter_async_context(self._serving(app, port))
        self._servers.append(server)
        return server.url

    def stop(self) -> None:
        """Let all servers stop at once: uvicorn takes a tenth of a second for each."""
        for server in self._servers:
            server.stop.set()

    async def worker(self, *answers: Any, port: int = 0) -> Worker:
        worker = Worker(*answers)
        worker.url = await self._serve(worker, port)
        return worker

    async def raw_worker(self, answer: bytes) -> RawWorker:
        worker = RawWorker(answer)
        server = await asyncio.start_server(worker.handle, "127.0.0.1", 0)
        await self._stack.enter_async_context(server)
        worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return worker

    async def router(self, *workers: Any, middlewares: Any = (), **settings: Any) -> str:
        urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
        app = create_app(urls, RouterSettings(**{"cooldown": 0.01, **settings}), middlewares)
        return await self._serve(app)

    async def fetch(self, method: str, url: str, **options: Any) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body."""
        async with self.client.request(method, url, **options) as reply:
            return reply.status, {name.lower(): value for name, value in reply.headers.items()}, await reply.read()

    async def in_flight(self, router: str) -> list[int]:
        async with self.client.get(f"{router}/workers") as reply:
            return [row["in_flight"] for row in (await reply.json())["workers"]]


@pytest.fixture
async def rig(serving: Callable[..., Any]) -> AsyncIterator[Rig]:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, auto_decompress=False) as client,
        AsyncExitStack() as stack,
    ):
        rig = Rig(stack, serving, client)
        yield rig
        rig.stop()


@pytest.fixture
def dead_url() -> str:
    """A URL that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]:
    """Ask again until the answer is yes, for ten seconds at most."""

    async def ask(question: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(10):
            while not await question():
                await anyio.lowlevel.checkpoint()

    return ask
