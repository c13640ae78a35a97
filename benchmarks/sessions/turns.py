"""One long session: what a turn costs as its conversation grows, and what rendering everything anew would cost."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.sessions.model import passages
from miles_core.session.session import TokenSession
from miles_core.types import Message, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.report import Value
    from miles_core.kinds.engines import EngineClient
    from miles_core.kinds.sessions import Prompt
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import GenerateRequest, Generation

SESSION, ENGINE, AGAIN = "attach, append, store", "transport and engine", "render and tokenize all"
_ENDS = 10
_QUESTION = 1100  # characters, some 270 tokens


class TimedClient:
    """An engine client that counts the seconds spent in it: of the clock, and of this thread's processor."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.seconds = self.processor = 0.0

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Pass the request on."""
        started, worked = time.perf_counter(), time.thread_time()
        try:
            return await self._client.generate(request)
        finally:
            self.seconds, self.processor = time.perf_counter() - started, time.thread_time() - worked


@dataclass
class Turns:
    """Seconds of every turn, by what they were spent on, and tokens at the end; the engine's by the clock."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {SESSION: [], ENGINE: [], AGAIN: []})
    tokens: int = 0

    def rows(self) -> list[dict[str, Value]]:
        """Medians of the first and the last ten turns, and totals."""
        return [
            {
                "case": case,
                "first_ten_ms": 1e3 * median(spent[:_ENDS]),
                "last_ten_ms": 1e3 * median(spent[-_ENDS:]),
                "last_to_first": median(spent[-_ENDS:]) / median(spent[:_ENDS]),
                "total_s": sum(spent),
            }
            for case, spent in self.seconds.items()
        ]


async def play(tokenizer: ChatTokenizer, client: EngineClient, turns: int) -> Turns:
    """One conversation of so many turns; each question is a new text, each request brings the whole history."""
    timed = TimedClient(client)
    session = TokenSession(tokenizer, timed, None, task_id="t", group_id="g", trajectory_id="long")
    questions = passages(_QUESTION, seed=0)
    measured, history = Turns(), list[Message]()
    for _ in range(turns):
        history.append(Message("user", next(questions)))
        sent = json.dumps([message.to_chat() for message in history])
        messages = [Message.from_chat(chat) for chat in json.loads(sent)]  # texts of their own, as a client sends them
        started = time.thread_time()
        prompt = session.prepare(messages)
        turn = await session.generate(prompt, SamplingParams(max_new_tokens=1024))
        measured.seconds[SESSION].append(time.thread_time() - started - timed.processor)
        measured.seconds[ENGINE].append(timed.seconds)
        measured.seconds[AGAIN].append(_render_again(tokenizer, messages, prompt))
        history.append(turn.message)
    measured.tokens = session.tree.nodes[-1].length
    return measured


def _render_again(tokenizer: ChatTokenizer, messages: Sequence[Message], prompt: Prompt) -> float:
    """Seconds of what a server does that keeps no tokens."""
    chat = [message.to_chat() for message in messages]
    started = time.thread_time()
    text = tokenizer.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    spent = time.thread_time() - started
    assert abs(len(ids) - len(prompt.input_ids)) <= len(prompt.input_ids) // 10, "both must be the same conversation"
    return spent
