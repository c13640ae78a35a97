"""A server on loopback over an engine that answers by script, with a template that has reasoning, tools and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from miles_core.kinds.sessions import OnTokens
from miles_core.session.parsing.derive import derive_parser
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.registry import SessionRegistry
from miles_core.session.served import ClientSession
from miles_core.session.server.app import create_app
from miles_core.session.server.opening import OpenRequest
from miles_core.session.session import TokenSession
from miles_core.session.template.boundary import Deriver
from miles_core.session.template.render import ChatTemplate
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import FinishReason, GenerateRequest, Generation, VersionSpan

CONTEXT = 2000
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'critic' %}{{ raise_exception('critics are not heard here') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' and message.reasoning_content %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first else '' }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


CHUNK = 3


@dataclass
class Says:
    """One turn: a text or ids; it ends with the stop token unless ``cut``.

    After ``holds_after`` tokens it waits for ``go``; after ``fails_after`` it raises ``error``.
    """

    said: str | Sequence[int]
    cut: bool = False
    holds_after: int | None = None
    fails_after: int | None = None
    error: Exception | None = None
    finish: str | None = None
    go: anyio.Event = field(default_factory=anyio.Event)


class Engine:
    """Implements ``EngineClient``; what was asked is in ``requests``, and ``running`` counts what is in flight."""

    def __init__(self, tokenizer: ChatTokenizer, turns: Sequence[Says | str]) -> None:
        self.tokenizer = tokenizer
        self.turns = [Says(turn) if isinstance(turn, str) else turn for turn in turns]
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.news = anyio.Condition()

    async def generate(self, request: GenerateRequest, *, on_tokens: OnTokens | None = None) -> Generation:
        self.requests.append(request)
        turn = self.turns.pop(0)
        await self._count(1)
        try:
            return await self._say(turn, request, on_tokens)
        finally:
            with anyio.CancelScope(shield=True):
                await self._count(-1)

    async def until_running(self, count: int) -> None:
        """Wait until so many requests are in flight."""
        with anyio.fail_after(10):
            async with self.news:
                while self.running != count:
                    await self.news.wait()

    async def _count(self, change: int) -> None:
        async with self.news:
            self.running += change
            self.news.notify_all()

    async def _say(self, turn: Says, request: GenerateRequest, on_tokens: OnTokens | None) -> Generation:
        ids, reason = self._ending(turn, request)
        for start in range(0, len(ids), CHUNK):
            await self._obstacles(turn, start)
            if on_tokens is not None:
                on_tokens(ids[start : start + CHUNK])
            await anyio.lowlevel.checkpoint()
        await self._obstacles(turn, len(ids))
        logprobs = -0.5 - np.arange(len(ids), dtype=np.float32) / 64
        return Generation(np.array(ids, np.int32), logprobs, reason, (VersionSpan(3, 0, len(ids)),), cached_tokens=2)

    async def _obstacles(self, turn: Says, position: int) -> None:
        if turn.holds_after is not None and position >= turn.holds_after:
            await turn.go.wait()
        if turn.fails_after is not None and position >= turn.fails_after:
            assert turn.error is not None
            raise turn.error

    def _ending(self, turn: Says, request: GenerateRequest) -> tuple[list[int], FinishReason]:
        stop = self.tokenizer.stop_token_ids[0]
        ids = self.tokenizer.encode(turn.said) if isinstance(turn.said, str) else list(turn.said)
        for text in request.sampling.stop:
            for length in range(len(ids) + 1):
                if text in self.tokenizer.decode(ids[:length]):
                    return ids[:length], FinishReason("stop", matched=text)
        if not turn.cut:
            ids.append(stop)
        most = request.sampling.max_new_tokens
        if turn.finish == "abort":
            return ids, FinishReason("abort", message="paused")
        if turn.cut or len(ids) > most:
            return ids[:most], FinishReason("length")
        return ids, FinishReason("stop", matched=stop)


@dataclass
class Room:
    """A server with the engine behind it and the sessions that it opened."""

    url: str
    engine: Engine
    registry: SessionRegistry
    sessions: list[TokenSession]
    session_id: str

    @property
    def session(self) -> TokenSession:
        """The session that was opened first."""
        return self.sessions[0]

    @property
    def base_url(self) -> str:
        return f"{self.url}/sessions/{self.session_id}/v1"

    def asked(self, index: int = -1) -> list[int]:
        """The prompt of a request that the engine got."""
        return [int(token) for token in self.engine.requests[index].input_ids]

    def stored(self, index: int) -> list[int]:
        """All ids up to and with a stored turn."""
        return [int(token) for token in self.session.tree.nodes[index].tokens()]


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    """Byte-level BPE, so that ids drift when a text is tokenized again, and characters may be cut."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|im_end|>", "<|im_start|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["having a having weather tool call name arguments assistant user"] * 20, trainer)
    markers: dict[str, Any] = {"eos_token": special[0], "pad_token": special[2], "extra_special_tokens": [special[1]]}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **markers)
    fast.chat_template = TEMPLATE
    return ChatTokenizer(fast, [fast.convert_tokens_to_ids(special[0])])


@pytest.fixture(scope="session")
def parser() -> TurnParser:
    """What the template tells of calls and reasoning."""
    return derive_parser(Deriver(ChatTemplate(TEMPLATE, {"eos_token": "<|im_end|>"})))


@pytest.fixture
def room(serving: Callable[..., Any], tokenizer: ChatTokenizer, parser: TurnParser) -> Callable[..., Any]:
    """``async with room(*turns) as room``: a server with one open session; ``client`` stands in for the script."""

    @asynccontextmanager
    async def open_room(
        *turns: Says | str,
        ttl: float = 3600.0,
        max_sessions: int = 8,
        max_body_bytes: int = 1 << 20,
        context_length: int = CONTEXT,
        max_tokens: int = 1 << 20,
        client: Any = None,
        **options: Any,
    ) -> AsyncIterator[Room]:
        engine = Engine(tokenizer, turns)
        registry = SessionRegistry(ttl=ttl, max_sessions=max_sessions)
        sessions: list[TokenSession] = []

        def make(wanted: Any) -> ClientSession:
            names = {"task_id": wanted.task_id or "task", "group_id": wanted.group_id or "group"}
            session = TokenSession(
                tokenizer, client or engine, None, trajectory_id="trajectory", parser=parser, **names
            )
            sessions.append(session)
            return ClientSession(session, context_length=context_length, max_tokens=max_tokens, fixed=wanted.sampling)

        options = {"open_session": make, **options}
        app = create_app(registry, model="toy", max_body_bytes=max_body_bytes, **options)
        first = OpenRequest()
        session_id = registry.add(make(first))
        async with serving(app) as server:
            yield Room(server.url, engine, registry, sessions, session_id)

    return open_room


@pytest.fixture(scope="session")
def says() -> type[Says]:
    """``says(text, cut=True)``: one turn of the script; a text alone will do for those that end by themselves."""
    return Says


@pytest.fixture(scope="session")
def in_thread() -> Callable[..., Any]:
    """``await in_thread(function, ...)``: call a synchronous SDK while the server runs in the test's loop."""

    async def call(function: Any, *arguments: Any, **options: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(function, *arguments, **options))

    return call
