"""What sessions cost: turns of a long conversation, memory of many, processor time of the server before an engine."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import psutil

from benchmarks import serving
from benchmarks.report import Report, Value
from benchmarks.sessions.memory import live
from benchmarks.sessions.model import CONTEXT, END, passages, write_model
from benchmarks.sessions.server import Servers, cost
from benchmarks.sessions.turns import AGAIN, SESSION, Turns, play
from miles_core.engine.client import HttpEngineClient

if TYPE_CHECKING:
    from miles_core.session.tokenizer import ChatTokenizer

GOAL_FLAT, GOAL_LESS, GOAL_GB = 2.0, 20.0, 1.0
CONCURRENCY = 16
_ANSWER = 1100  # characters, some 270 tokens
_SHORT_ANSWER = "The value of c is 2."


def run(*, turns: int = 128, sessions: int = 2000, requests: int = 4000) -> Report:
    """Turns of one long session, memory of many live ones, and what the session server costs per request.

    The tokenizer is a byte-level BPE learned from the documentation; engines answer at once, so that what is measured
    is ours. Goals: the last ten turns cost at most twice the first ten, all of them at least 20 times less than to
    render and tokenize every conversation anew, and 2,000 live sessions of 20 turns keep less than 1 GB.

    Parameters
    ----------
    turns
        Turns of the long session, of about 540 tokens each.
    sessions
        Live sessions of 20 turns; 0 leaves this out.
    requests
        Requests to the session server, and as many to the engine directly; 0 leaves this out.
    """
    return anyio.run(partial(_run, turns, sessions, requests))


async def _run(turns: int, sessions: int, requests: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="miles-sessions-") as folder:
        model = Path(folder) / "model"
        tokenizer = write_model(model)
        long = await _long(tokenizer, turns, Path(folder))
        summary = _summary(long)
        if sessions:
            grown = await live(tokenizer, sessions, turns=20)
            summary |= {**grown, "within_goal_memory": float(grown["growth_gb"] or 0) < GOAL_GB}
        if requests:
            summary |= await _server(tokenizer, model, requests, Path(folder))
    return Report(
        "sessions",
        long.rows(),
        summary,
        (
            f"One session of {turns} turns to {long.tokens} tokens; the engine answers over loopback HTTP.",
            "Processor time of this thread; transport and engine by the clock, since others work meanwhile.",
            "last to first: the median of the last ten turns over that of the first ten.",
            f"The server: conversations of 8 short turns, {CONCURRENCY} at once; processor time, not wall time.",
        ),
    )


def _summary(long: Turns) -> dict[str, Value]:
    rows = {str(row["case"]): row for row in long.rows()}
    flat = float(rows[SESSION]["last_to_first"] or 0)
    less = float(rows[AGAIN]["total_s"] or 0) / float(rows[SESSION]["total_s"] or 1)
    return {
        "tokens": long.tokens,
        "last_to_first": flat,
        "within_goal_flat": flat <= GOAL_FLAT,
        "times_less_than_rendering_again": less,
        "within_goal_total": less >= GOAL_LESS,
    }


async def _long(tokenizer: ChatTokenizer, turns: int, folder: Path) -> Turns:
    answer = [*tokenizer.encode(next(passages(_ANSWER, seed=3))), END]
    async with (
        serving.worker(answer, log=folder / "long.log") as url,
        aiohttp.ClientSession() as http,
    ):
        client = HttpEngineClient(url, http, vocab_size=tokenizer.vocab_size, context_length=CONTEXT, routing=None)
        return await play(tokenizer, client, turns)


async def _server(tokenizer: ChatTokenizer, model: Path, requests: int, folder: Path) -> dict[str, Value]:
    answer = [*tokenizer.encode(_SHORT_ANSWER), END]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving.worker(answer, log=folder / "worker.log"))
        sessions = await stack.enter_async_context(serving.sessions(engine, model, log=folder / "server.log"))
        own = psutil.Process()
        found = {" ".join(each.cmdline()): each for each in own.children()}
        processes = {
            "client": own,
            "engine": next(each for line, each in found.items() if "benchmarks.worker" in line),
            "server": next(each for line, each in found.items() if "serve session" in line),
        }
        spent = await cost(Servers(answer[:-1], engine, sessions, processes), tokenizer, requests, CONCURRENCY)
    added = sum(float(spent[f"sessions_{name}_ms"] or 0) - float(spent[f"direct_{name}_ms"] or 0) for name in processes)
    return {**spent, "added_processor_ms_per_request": added}
