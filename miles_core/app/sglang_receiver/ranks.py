"""Calls from the front, in the server's HTTP process, to the receivers of its ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import aiohttp
import anyio

from miles_core.app.sglang_receiver.folder import socket_of
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

SILENCE_SECONDS = 10.0
"""A rank that answers nothing at all for so long is stuck; a long call to one that lives may take any time."""

_ASK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank answered."""

    status: int
    body: bytes
    media_type: str


async def ask(rank: int, method: str, path: str, body: bytes = b"") -> Answer:
    """Call a rank and wait for its answer as long as it lives.

    Raises:
        EngineError: if it does not.
    """
    outcome: list[Answer | EngineError] = []

    async def end_with(call: Awaitable[Answer]) -> None:
        try:
            outcome.append(await call)
        except EngineError as error:
            outcome.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_with, _call(rank, method, path, body, None))
        tasks.start_soon(end_with, _watch(rank))
    if isinstance(outcome[0], EngineError):
        raise outcome[0]
    return outcome[0]


async def statuses(count: int) -> Sequence[dict[str, Any]]:
    """Of each rank the version of its ``open`` update and the ``reason`` for which it must not serve, or ``None``.

    Raises:
        EngineError: if one does not answer.
    """
    return [await _status(rank) for rank in range(count)]


async def _watch(rank: int) -> NoReturn:
    """Ends when the rank is silent."""
    while True:
        await _status(rank)
        await anyio.sleep(_ASK_SECONDS)


async def _status(rank: int) -> dict[str, Any]:
    answer = await _call(rank, "GET", "/status", b"", SILENCE_SECONDS)
    status: dict[str, Any] = json.loads(answer.body)
    return status


async def _call(rank: int, method: str, path: str, body: bytes, seconds: float | None) -> Answer:
    connector = aiohttp.UnixConnector(path=str(socket_of(rank)))
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            http.request(method, f"http://rank{path}", data=body) as reply,
        ):
            return Answer(reply.status, await reply.read(), reply.content_type)
    except TimeoutError:
        raise EngineError(
            f"rank {rank} of this server has not answered for {seconds:g} s",
            remedy="Look whether its scheduler process is stopped or hangs; restart the server.",
        ) from None
    except aiohttp.ClientError as error:
        raise EngineError(
            f"rank {rank} of this server cannot be reached: {error}", remedy="Look at the log of its scheduler."
        ) from error
