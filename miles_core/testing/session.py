"""A real session against a scripted engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from miles_core.engine.client import HttpEngineClient
from miles_core.session.session import TokenSession
from miles_core.testing.toy_tokenizer import toy_tokenizer

if TYPE_CHECKING:
    from miles_core.kinds.sessions import OnTokens
    from miles_core.testing.scripted_engine import ScriptedEngine
    from miles_core.types import GenerateRequest, Generation

_CONTEXT = 4096


class LoopbackClient:
    """The run's own engine client, with a connection for each call, so that it needs no closing and no one loop."""

    def __init__(self, engine: ScriptedEngine, vocab_size: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size

    async def generate(self, request: GenerateRequest, *, on_tokens: OnTokens | None = None) -> Generation:
        """Generate from token ids; ``on_tokens`` gets the output ids as they come."""
        async with aiohttp.ClientSession() as http:
            client = HttpEngineClient(
                self._engine.url,
                http,
                vocab_size=self._vocab_size,
                context_length=_CONTEXT,
                routing=self._engine.routing,
            )
            return await client.generate(request, on_tokens=on_tokens)


def make_session(engine: ScriptedEngine, *, trajectory_id: str = "trajectory-0") -> TokenSession:
    """A new conversation; its tokenizer is the engine's, or the toy tokenizer."""
    tokenizer = engine.tokenizer or toy_tokenizer()
    client = LoopbackClient(engine, tokenizer.vocab_size)
    return TokenSession(
        tokenizer, client, engine.routing, task_id="task-0", group_id="group-0", trajectory_id=trajectory_id
    )
