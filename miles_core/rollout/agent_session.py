"""The sessions of an agent's episode: what the session server serves, and what the agent is given."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError
from miles_core.lib.error_text import value_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from miles_core.kinds.sessions import OnTokens, Prompt, SamplingRequest, Session, Tools, Turn
    from miles_core.rollout.agents import Endpoint, Endpoints
    from miles_core.rollout.handle import Handle
    from miles_core.types import Message


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSession:
    """Implements ``miles_core.session.served.Served`` within the budgets of an episode."""

    session: Any
    handle: Handle

    def prepare(self, messages: Sequence[Message], tools: Tools) -> Prompt:
        """Attach a conversation to what is stored."""
        if characters := self.session.characters_beyond(messages, self.handle.max_context_tokens):
            raise self.handle.too_large(characters)
        prompt: Prompt = self.session.prepare(messages, tools)
        return prompt

    async def generate(self, prompt: Prompt, wanted: SamplingRequest, *, on_tokens: OnTokens | None = None) -> Turn:
        """Generate as the run samples, within the budgets."""
        return await self.handle.answer(self.session, prompt, wanted, on_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class ReachedSession:
    """Implements :class:`miles_core.kinds.environments.AgentSession`."""

    base_url: str
    api_key: str
    id: str
    seed: int
    evaluation: bool
    _sessions: AgentSessions

    def agent(self, name: str) -> ReachedSession:
        """The session of another agent of the episode; from any thread."""
        return self._sessions.session(name)


class AgentSessions:
    """The sessions of an episode by agent, served as long as ``served`` is open; make it on the event loop."""

    def __init__(self, handle: Handle, endpoints: Endpoints, served: ExitStack) -> None:
        self._handle = handle
        self._endpoints = endpoints
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._reached: dict[str, ReachedSession] = {}

    def session(self, name: str) -> ReachedSession:
        """The session of an agent, opened the first time.

        Raises:
            RolloutError: if the name is no text, or the episode is over.
        """
        if threading.get_ident() == self._thread:
            return self._opened(name)
        opened: Future[ReachedSession] = Future()

        def open_there() -> None:
            try:
                opened.set_result(self._opened(name))
            except Exception as error:  # noqa: BLE001 - raised in the thread that asks
                opened.set_exception(error)

        self._loop.call_soon_threadsafe(open_there)
        return opened.result()

    def _opened(self, name: str) -> ReachedSession:
        if not isinstance(name, str) or not name:
            raise RolloutError(f"an agent's name must be a text; got {value_text(name)}")
        if name not in self._reached:
            session: Session = self._handle.session(name)
            served = EpisodeSession(session, self._handle)
            endpoint: Endpoint = self._served.enter_context(self._endpoints.serving(served))
            self._reached[name] = ReachedSession(
                endpoint.base_url, endpoint.api_key, self._handle.id, self._handle.seed, self._handle.evaluation, self
            )
        return self._reached[name]
