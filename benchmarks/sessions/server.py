"""Processor time that the session server adds to a request, over calling the engine directly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import psutil

from benchmarks.load import client, post

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp

    from benchmarks.report import Value
    from miles_core.session.tokenizer import ChatTokenizer

TURNS = 8
_SAMPLING = {"temperature": 1.0, "max_new_tokens": 64, "stop_token_ids": [2]}


@dataclass(frozen=True)
class Servers:
    """Where the engine, which always gives the ``answer``, and the session server are, and their processes."""

    answer: list[int]
    engine: str
    sessions: str
    processes: dict[str, psutil.Process]


async def cost(servers: Servers, tokenizer: ChatTokenizer, requests: int, concurrency: int) -> dict[str, Value]:
    """Processor milliseconds per request, through sessions and directly, and where they are spent.

    Conversations of ``TURNS`` turns, so many at once as ``concurrency``; the direct calls are the same prompts as ids.
    """
    rounds = max(1, requests // TURNS)
    numbers = count()
    async with client() as http:
        prompts = await _prompts(http, servers.sessions, tokenizer.decode(servers.answer))

        async def through() -> None:
            opened = json.loads(await post(http, f"{servers.sessions}/sessions", b"{}", status=201))
            for body in _chats(next(numbers), tokenizer.decode(servers.answer)):
                await post(http, f"{opened['base_url']}/chat/completions", body)
            async with http.delete(f"{servers.sessions}/sessions/{opened['id']}") as reply:
                reply.raise_for_status()

        async def direct() -> None:
            for body in prompts:
                await post(http, f"{servers.engine}/generate", body)

        spent: dict[str, Value] = {"requests_at_once": concurrency}
        for name, work in (("direct", direct), ("sessions", through)):
            await _wave(work, concurrency, concurrency)  # warm
            before = _processor(servers)
            await _wave(work, rounds, concurrency)
            after = _processor(servers)
            for process in after:
                spent[f"{name}_{process}_ms"] = 1e3 * (after[process] - before[process]) / (rounds * TURNS)
        return spent


def _chats(number: int, answer: str) -> list[bytes]:
    """The bodies of a conversation's requests; no two conversations ask the same."""
    messages: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"What is the value of c in line {turn} of file {number}?"})
        bodies.append(json.dumps({"model": "m", "messages": messages, "max_tokens": 64}).encode())
        messages.append({"role": "assistant", "content": answer})
    return bodies


async def _prompts(http: aiohttp.ClientSession, url: str, answer: str) -> list[bytes]:
    """The same requests as the engine gets them: as ids."""
    opened = json.loads(await post(http, f"{url}/sessions", b"{}", status=201))
    for body in _chats(-1, answer):
        await post(http, f"{opened['base_url']}/chat/completions", body)
    async with http.get(f"{url}/sessions/{opened['id']}") as reply:
        record = await reply.json()
    ids: list[int] = []
    bodies: list[bytes] = []
    for turn in record["turns"]:
        assert turn["index"] == 0 or turn["parent"] == turn["index"] - 1, "the conversation must be continued"
        ids += turn["context_ids"]
        asked = {"rid": "x", "input_ids": ids, "sampling_params": _SAMPLING, "return_logprob": True}
        bodies.append(json.dumps(asked).encode())
        ids += turn["output_ids"]
    return bodies


async def _wave(work: Callable[[], Awaitable[None]], times: int, concurrency: int) -> None:
    waiting = iter(range(times))

    async def worker() -> None:
        for _ in waiting:
            await work()

    async with anyio.create_task_group() as tasks:
        for _ in range(concurrency):
            tasks.start_soon(worker)


def _processor(servers: Servers) -> dict[str, float]:
    """Processor seconds of each process so far."""
    seconds = {name: process.cpu_times() for name, process in servers.processes.items()}
    return {name: times.user + times.system for name, times in seconds.items()}
