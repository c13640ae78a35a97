"""Asks the parsers of a turn, which may be anybody's, and checks what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.lib.error_text import error_text, value_text
from miles_core.plugins.functions.resolve import label_of

if TYPE_CHECKING:
    from miles_core.kinds.sessions import ReasoningParser, ToolCallParser


def ask_reasoning(parser: ReasoningParser, text: str) -> tuple[str | None, str]:
    """The reasoning of a text and the rest.

    Raises:
        SessionError: if the parser raises, or returns something else.
    """
    answer = _ask("session.reasoning", parser, text)
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], str):
        reasoning, rest = answer
        if reasoning is None or isinstance(reasoning, str):
            return reasoning, rest
    raise SessionError(
        f"session.reasoning: {label_of(parser)} must return (the reasoning or None, the rest); got {value_text(answer)}"
    )


def ask_calls(parser: ToolCallParser, text: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """The text beside the calls, and the calls.

    Raises:
        SessionError: if the parser raises, or returns something else.
    """
    answer = _ask("session.tool_calls", parser, text)
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str):
        content, calls = answer
        if isinstance(calls, list | tuple) and all(map(_is_call, calls)):
            return content, calls
    raise SessionError(
        f"session.tool_calls: {label_of(parser)} must return (the text, calls of name and arguments, both texts); "
        f"got {value_text(answer, 200)}"
    )


def _ask(option: str, parser: Any, text: str) -> Any:
    try:
        return parser(text)
    except (Exception, SystemExit) as error:
        raise SessionError(f"{option}: {label_of(parser)} raised {error_text(error)}") from error


def _is_call(call: object) -> bool:
    if not isinstance(call, Mapping) or not {"name", "arguments"} <= call.keys() <= {"name", "arguments", "id"}:
        return False
    return bool(call["name"]) and all(isinstance(value, str) for value in call.values())
