"""Short conversations of our own, to tell what depends on the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.session.template.forms import CALL_ID, call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.template.render import Chat


def dummies() -> Iterator[tuple[Chat, ...]]:
    """Conversations that end in a user's message: alone, with a system message, with a turn, with a call."""
    ask: Chat = {"role": "user", "content": "one"}
    answer: Chat = {"role": "assistant", "content": "two"}
    yield (ask,)
    yield ({"role": "system", "content": "three"}, ask)
    yield (ask, answer, ask)
    identifier = CALL_ID.format(9)
    calls: Chat = {"role": "assistant", "content": "", "tool_calls": [call(identifier, "other", "x")]}
    result: Chat = {"role": "tool", "content": "four", "tool_call_id": identifier, "name": "other"}
    yield (ask, calls, result, answer, ask)
