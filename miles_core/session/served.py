"""Sessions as clients of the session server continue them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Protocol

from miles_core.errors import BudgetSpent, EngineError
from miles_core.kinds.sessions import SamplingRequest
from miles_core.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.sessions import OnTokens, Prompt, Tools, Turn
    from miles_core.session.session import TokenSession
    from miles_core.types import Message

_SEEDS = 1 << 31


class Served(Protocol):
    """A session as the server continues it for a client: the session and whoever sets limits to it."""

    @property
    def session(self) -> TokenSession:
        """The session."""

    def prepare(self, messages: Sequence[Message], tools: Tools) -> Prompt:
        """See :meth:`miles_core.kinds.sessions.Session.prepare`.

        Raises:
            BudgetSpent: if the messages are so large that they cannot fit.
        """

    async def generate(self, prompt: Prompt, wanted: SamplingRequest, *, on_tokens: OnTokens | None = None) -> Turn:
        """Generate the turn after a prompt and store it.

        Raises:
            BudgetSpent: if nothing may be generated after this prompt.
            EngineRequestError: if the engine refuses the request.
            EngineError: if the engine failed, or aborted the turn; nothing is stored then.
        """


class ClientSession:
    """Implements :class:`Served` for a session that only clients continue.

    ``fixed`` holds what the session was opened with: it wins over what a request asks for; its ``max_new_tokens`` is
    the most that a request gets, and its seed counts up with each turn. Prompts leave more than ``kept_back`` tokens of
    the context. ``max_tokens`` bounds what the session keeps.
    """

    def __init__(
        self,
        session: TokenSession,
        *,
        context_length: int,
        max_tokens: int,
        kept_back: int = 0,
        fixed: SamplingRequest | None = None,
    ) -> None:
        self.session = session
        self._context_length = context_length
        self._kept_back = kept_back
        self._max_tokens = max_tokens
        self._fixed = fixed or SamplingRequest()
        self._turns = count()
        self._in_flight = 0  # tokens that the turns being generated may still add

    def prepare(self, messages: Sequence[Message], tools: Tools) -> Prompt:
        """Attach a conversation to what is stored."""
        if characters := self.session.characters_beyond(messages, self._context_length):
            raise BudgetSpent(
                f"the messages have {characters} characters, too many for the {self._context_length} tokens of the "
                "model's context",
                remedy="Send less.",
            )
        return self.session.prepare(messages, tools)

    async def generate(self, prompt: Prompt, wanted: SamplingRequest, *, on_tokens: OnTokens | None = None) -> Turn:
        """Generate with what is asked for, as far as the context and the session have room."""
        sampling = self._sampling(prompt, wanted)
        most = prompt.appended_tokens + sampling.max_new_tokens
        self._in_flight += most
        try:
            turn = await self.session.generate(prompt, sampling, on_tokens=on_tokens, keep_aborted=False)
        finally:
            self._in_flight -= most
        reason = turn.generation.finish_reason
        if reason.type == "abort":
            raise EngineError(
                f"the engine aborted the turn: {reason.message or 'no reason given'}", remedy="Try again."
            )
        return turn

    def _sampling(self, prompt: Prompt, wanted: SamplingRequest) -> SamplingParams:
        room = self._room(prompt)
        asked = [most for most in (self._fixed.max_new_tokens, wanted.max_new_tokens) if most is not None]
        temperatures = (self._fixed.temperature, wanted.temperature, 1.0)
        seed = wanted.seed if self._fixed.seed is None else (self._fixed.seed + next(self._turns)) % _SEEDS
        return SamplingParams(
            temperature=next(value for value in temperatures if value is not None),
            max_new_tokens=min([room, *asked]),
            sampling_seed=seed,
            stop=wanted.stop,
            json_schema=wanted.json_schema,
        )

    def _room(self, prompt: Prompt) -> int:
        room = self._context_length - len(prompt.input_ids)
        if room <= self._kept_back:
            raise BudgetSpent(
                f"the conversation has {len(prompt.input_ids)} tokens; the model's context has {self._context_length}"
                + (f", of which engines keep {self._kept_back} back" if self._kept_back else ""),
                remedy="Begin a shorter conversation.",
            )
        kept = self.session.tree.tokens + self._in_flight
        left = self._max_tokens - kept - prompt.appended_tokens
        if left <= 0:
            raise BudgetSpent(
                f"{prompt.appended_tokens} tokens would be added to the {kept} that the session keeps, or may soon, of "
                f"at most {self._max_tokens}",
                remedy="Open another session, or raise session.max_session_tokens.",
            )
        return min(room, left)
