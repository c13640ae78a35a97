"""``[session] match``: whether a message that is given stands for a stored one."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.lib.error_text import error_text, value_text
from miles_core.plugins.functions.resolve import label_of
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.kinds.sessions import MessageMatch
    from miles_core.types import Message

REASONING = "reasoning_content"
"""Where messages hold what the policy thought."""


def exact(stored: Message, given: Message, /) -> bool:
    """Only equal messages match."""
    return stored == given


def tool_arguments(stored: Message, given: Message, /) -> bool:
    """Arguments of calls that are equal as JSON match, text in parts matches text, and reasoning may be left out."""
    same = (stored.role, stored.text, stored.tool_call_id) == (given.role, given.text, given.tool_call_id)
    if not same or not (isinstance(given.content, str) or len(given.text) == _length(given)):
        return False
    if given.name not in (None, stored.name) or len(stored.tool_calls) != len(given.tool_calls):
        return False
    if any(_call(a) != _call(b) for a, b in zip(stored.tool_calls, given.tool_calls, strict=True)):
        return False
    return {REASONING: stored.extra.get(REASONING), **given.extra} == {REASONING: None, **stored.extra}


def _length(message: Message) -> int:
    """Characters of a message of parts; an image makes it longer than its text."""
    return sum(len(getattr(part, "text", "")) or 1 for part in message.content)


def _call(call: Mapping[str, Any]) -> tuple[Any, ...]:
    function = call.get("function")
    if not isinstance(function, dict | type(call)):
        return (call,)
    return call.get("id"), function.get("name"), _value(function.get("arguments"))


def _value(arguments: Any) -> Any:
    """The arguments as a value; text that is no JSON stays text."""
    try:
        return json_value(arguments if isinstance(arguments, str) else json.dumps(arguments))
    except (ValueError, TypeError, RecursionError):
        return arguments


def json_value(text: str) -> Any:
    """The value of JSON text as a reply in JSON can hold it: 1e999 and NaN are their text.

    Raises:
        ValueError: if it is no JSON.
        RecursionError: if it is nested too deeply.
    """
    return json.loads(text, parse_float=_finite, parse_constant=str)


def _finite(number: str) -> float | str:
    value = float(number)
    return value if math.isfinite(value) else number


MATCHES: dict[str, MessageMatch] = {"exact": exact, "tool_arguments": tool_arguments}
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
