"""``[session] audit``: some sessions of every step are compared with a fresh render."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from miles_core.session.audit import audit, audit_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.session.session import TokenSession
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.session.tree import TurnNode

_SPARE = 8  # sessions kept for each that is audited: some may have no turn when the step ends
_TOKENS = 1 << 16
"""Of the prompts of one session that are rendered, so that an audit costs well under a second."""


class SessionAudit:
    """Keeps the first sessions that are opened in a step, ``per_step`` of them, and audits them when it ends."""

    def __init__(self, per_step: int, tokenizer: ChatTokenizer) -> None:
        self._per_step = per_step
        self._tokenizer = tokenizer
        self._sessions: list[TokenSession] = []

    def watched(self, open_session: Callable[..., TokenSession]) -> Callable[..., TokenSession]:
        """What opens sessions, such that this audit sees them."""

        def opened(**options: str) -> TokenSession:
            session = open_session(**options)
            if len(self._sessions) < _SPARE * self._per_step:
                self._sessions.append(session)
            return session

        return opened

    def metrics(self) -> dict[str, float]:
        """What was found in the sessions of this step, as far as they have turns; the next step begins."""
        sessions, self._sessions = self._sessions, []
        spoken = [(session, turns) for session in sessions if (turns := _first(session.tree.nodes))]
        audited = [audit(turns, session.renderer, self._tokenizer) for session, turns in spoken[: self._per_step]]
        return audit_metrics(audited)


def _first(turns: Sequence[TurnNode]) -> list[TurnNode]:
    """As many of the first turns as may be rendered; each costs all that stands before it."""
    rendered = accumulate(turn.length for turn in turns)
    return [turn for turn, tokens in zip(turns, rendered, strict=True) if tokens <= _TOKENS]
