"""What stands between driver and engine when an exchange goes wrong on its way."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

import aiohttp
import anyio

Fault: TypeAlias = Literal["refused", "never arrives", "reply lost"]


class Proxy:
    """Passes calls on to ``target``, but for the first one to a path of ``faults``; ``calls`` counts them by path."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self.target = target
        self.http = http
        self.faults: dict[str, Fault] = {}
        self.calls: Counter[str] = Counter()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path = scope["path"]
        self.calls[path] += 1
        fault = self.faults.pop(path, None)
        if fault == "refused":
            await _answer(send, 500, b'{"error": {"message": "the drill says no"}}')
            return
        if fault == "never arrives":
            await _until_gone(receive)
            return
        target = f"{self.target}{path}?{scope['query_string'].decode()}"
        headers = {"content-type": "application/json"}
        async with self.http.request(scope["method"], target, data=body or None, headers=headers) as reply:
            raw = await reply.read()
        if fault == "reply lost":
            await _until_gone(receive)
            return
        await _answer(send, reply.status, raw)


async def _answer(send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _until_gone(receive) -> None:
    with anyio.move_on_after(60):
        while (await receive())["type"] != "http.disconnect":
            pass
