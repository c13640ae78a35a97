"""One wave of concurrent HTTP requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio

from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Sequence


def client() -> aiohttp.ClientSession:
    """A session without a bound on connections, as the driver uses it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600, sock_connect=10)
    )


async def wave(http: aiohttp.ClientSession, url: str, bodies: Sequence[bytes], concurrency: int) -> float:
    """POST all ``bodies`` with ``concurrency`` of them in flight; returns the seconds until the last answer.

    Raises:
        MilesError: if an answer is not 200.
    """
    waiting = iter(bodies)

    async def sender() -> None:
        for body in waiting:
            await post(http, url, body)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(concurrency):
            tasks.start_soon(sender)
    return time.perf_counter() - started


async def post(http: aiohttp.ClientSession, url: str, body: bytes | None = None, *, status: int = 200) -> Any:
    """POST JSON bytes; returns the bytes of an answer of this ``status``."""
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        answer = await response.read()
        if response.status != status:
            raise MilesError(f"{url} answered {response.status}: {answer[:200]!r}")
        return answer
