"""A generated text as a message, and as much of it as no later token can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.session.parsing.ask import ask_calls, ask_reasoning
from miles_core.session.parsing.fixed import held_back
from miles_core.types import Message
from miles_core.types.frozen import nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.sessions import ReasoningParser, ToolCallParser


@dataclass(frozen=True)
class TurnParser:
    """Parts a turn into reasoning, content and calls; without a parser for it, a part stays text.

    Of parsers it uses these attributes, as far as they have them. Of a parser of calls: ``starts``, where a call may
    begin, and ``whole``, that a text is either all calls or none. Of one of reasoning: ``ends``, what ends it,
    ``starts``, with what a text begins that does not begin with content, ``marks``, which are never content, and
    ``again``, that there may be more of it behind its end.
    """

    tool_calls: ToolCallParser | None = None
    reasoning: ReasoningParser | None = None

    def message(self, text: str, *, calls: bool, call_id: Callable[[int], str]) -> Message:
        """The message that a whole turn spells; ``call_id`` names the calls that have no identifier of their own.

        Raises:
            SessionError: if a parser fails.
        """
        reasoning, content = (None, text) if self.reasoning is None else ask_reasoning(self.reasoning, text)
        found = ask_calls(self.tool_calls, content) if calls and self.tool_calls is not None else (content, ())
        return Message(
            role="assistant",
            content=found[0],
            tool_calls=tuple(
                {
                    "id": call.get("id") or call_id(index),
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for index, call in enumerate(found[1])
            ),
            extra={"reasoning_content": reasoning} if reasoning else nothing(),
        )

    def settled(self, text: str, *, calls: bool) -> tuple[str, str]:
        """The reasoning and the content that every turn has which begins with this text.

        Raises:
            SessionError: if a parser fails.
        """
        if self.reasoning is None:
            return "", self._content(text, text, calls=calls)
        end = getattr(self.reasoning, "ends", None)
        if not isinstance(end, str):
            return "", ""
        found, rest = ask_reasoning(self.reasoning, text)
        if end not in text and self._undecided(text, found, rest):
            return "", ""
        return self._reasoning(text, found or "", end), self._content(text, rest, calls=calls)

    def _undecided(self, text: str, found: str | None, rest: str) -> bool:
        """Whether what a text begins with may still become a mark, or what a mark begins is not read yet."""
        starts = getattr(self.reasoning, "starts", None)
        if starts is None:
            return found is None
        begun = text.lstrip()
        unread = found is None and rest == text and begun.startswith(tuple(starts))
        return unread or any(start.startswith(begun) for start in starts)

    def _reasoning(self, text: str, found: str, end: str) -> str:
        if not end:
            return found
        marks = (end, *self._marks)
        held = found[: held_back(found, marks, text)]
        if end not in text:
            return held.rstrip()
        if held == found or self.reasoning is None or not getattr(self.reasoning, "again", False):
            return found
        goes_on = (ask_reasoning(self.reasoning, text + "x")[0] or "") != found
        return held if goes_on else found

    @property
    def _marks(self) -> tuple[str, ...]:
        return tuple(getattr(self.reasoning, "marks", ()))

    def _content(self, text: str, content: str, *, calls: bool) -> str:
        marks = self._marks
        starts: tuple[str, ...] | None = ()
        if calls and self.tool_calls is not None:
            starts = getattr(self.tool_calls, "starts", None)
        if starts is None:
            return ""
        if getattr(self.tool_calls, "whole", False):
            begun = content.lstrip()
            if any(start.startswith(begun) or begun.startswith(start) for start in starts):
                return ""
            starts = ()
        if not marks and not starts:
            return content
        return content[: held_back(content, (*marks, *starts), text)].rstrip()
