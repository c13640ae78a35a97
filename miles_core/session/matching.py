"""``[session] match``: whether a message that is given stands for a stored one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.lib.error_text import error_text, value_text
from miles_core.plugins.functions.resolve import label_of
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from miles_core.kinds.sessions import MessageMatch
    from miles_core.types import Message


def exact(stored: Message, given: Message, /) -> bool:
    """Only equal messages match."""
    return stored == given


MATCHES: dict[str, MessageMatch] = {"exact": exact}
"""The built-in ones, by name."""


def ask_match(match: MessageMatch, stored: Message, given: Message) -> bool:
    """What the function says.

    Raises:
        SessionError: if it raises, or answers something else than a bool.
    """
    try:
        answer = match(frozen(stored), frozen(given))
    except (Exception, SystemExit) as error:
        raise SessionError(f"session.match: {label_of(match)} raised {error_text(error)}") from error
    if not isinstance(answer, bool):
        raise SessionError(f"session.match: {label_of(match)} must return a bool; got {value_text(answer)}")
    return answer
