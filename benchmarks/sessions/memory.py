"""Many live sessions: how much memory they keep."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.sessions.model import END, passages
from miles_core.session.session import TokenSession
from miles_core.types import FinishReason, Generation, Message, SamplingParams, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.report import Value
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import GenerateRequest

_QUESTION = 1100
_ANSWER = 270


class Answers:
    """An engine that answers at once, each time with arrays of their own."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._ids = np.array(tokenizer.encode(next(passages(64_000, seed=1))), np.int32)
        self._draw = np.random.default_rng(0)

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """A passage, its stop at the end."""
        at = int(self._draw.integers(len(self._ids) - _ANSWER))
        output = np.append(self._ids[at : at + _ANSWER - 1], np.int32(END)).astype(np.int32)
        logprobs = np.full(_ANSWER, -0.5, np.float32)
        spans = (VersionSpan(0, 0, _ANSWER),)
        return Generation(output, logprobs, FinishReason("stop", matched=END), spans)


async def live(tokenizer: ChatTokenizer, sessions: int, turns: int) -> dict[str, Value]:
    """Growth of this process while so many sessions of so many turns come to be, all of them kept."""
    client, questions, kept = Answers(tokenizer), passages(_QUESTION, seed=2), list[TokenSession]()
    await _play(TokenSession(tokenizer, client, None, task_id="t", group_id="g", trajectory_id="w"), questions, turns)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(sessions):
        session = TokenSession(tokenizer, client, None, task_id="t", group_id="g", trajectory_id=str(number))
        await _play(session, questions, turns)
        kept.append(session)
    gc.collect()
    grown = psutil.Process().memory_info().rss - before
    tokens = sum(session.tree.tokens for session in kept)
    return {
        "live_sessions": sessions,
        "live_tokens": tokens,
        "growth_gb": grown / 1e9,
        "bytes_per_token": grown / tokens,
    }


async def _play(session: TokenSession, questions: Iterator[str], turns: int) -> None:
    messages: list[Message] = []
    for _ in range(turns):
        messages.append(Message("user", next(questions)))
        turn = await session.generate(session.prepare(messages), SamplingParams(max_new_tokens=1024))
        messages.append(turn.message)
