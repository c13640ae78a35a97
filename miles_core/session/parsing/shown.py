"""Renders of one assistant turn whose every text is a mark."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.session.template.forms import CALL_ID
from miles_core.session.template.pieces import common_start
from miles_core.session.template.words import Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from miles_core.session.template.boundary import Deriver
    from miles_core.session.template.render import Chat

ASK: Chat = {"role": "user", "content": "one"}


@dataclass(frozen=True)
class Marks:
    """Texts that the template does not hold."""

    names: tuple[str, str]
    keys: tuple[str, str]
    values: tuple[str, str]
    content: str
    reasoning: str
    ids: tuple[str, str] = (CALL_ID.format(1), CALL_ID.format(2))

    @classmethod
    def of(cls, source: str) -> Marks:
        """Marks for a template."""
        words = [Words(source).mark(index) for index in range(10, 18)]
        return cls((words[0], words[1]), (words[2], words[3]), (words[4], words[5]), words[6], words[7])


class Shower:
    """Renders turns; a turn that the template refuses or hides is tried in other surroundings."""

    def __init__(self, deriver: Deriver) -> None:
        self.deriver = deriver
        self.marks = Marks.of(deriver.template.source)
        self._tools = deriver.forms.of_tools([self._tool(name) for name in self.marks.names])
        self.prompt = self._render([ASK], prompt=True)
        self.asked = self._render([ASK])

    def _render(self, chat: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
        """A conversation with the same tools as every other; empty if the template refuses it."""
        messages = self.deriver.forms.messages([dict(message) for message in chat])
        try:
            return self.deriver.template.render(messages, self._tools, prompt=prompt)
        except SessionError:
            return ""

    def call(self, index: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The ``index``-th call."""
        function = {"name": self.marks.names[index], "arguments": dict(arguments)}
        return {"id": self.marks.ids[index], "type": "function", "function": function}

    def render(self, turn: Mapping[str, Any], *, follow: bool = False) -> str:
        """The conversation with this turn last, or with what follows it; empty if the template refuses it."""
        chat = [ASK, {"role": "assistant", **turn}]
        if follow:
            calls: Sequence[Mapping[str, Any]] = turn.get("tool_calls") or ()
            chat += [
                {"role": "tool", "content": "two", "tool_call_id": each["id"], "name": each["function"]["name"]}
                for each in calls
            ] or [ASK]
        return self._render(chat)

    def _tool(self, name: str) -> dict[str, Any]:
        properties = {key: {"type": "string", "description": "two"} for key in self.marks.keys}
        parameters = {"type": "object", "properties": properties, "required": []}
        return {"type": "function", "function": {"name": name, "description": "three", "parameters": parameters}}

    def calling(self, calls: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> Iterator[tuple[str, str]]:
        """A turn of calls that shows some marks, from where the turn begins; and what the whole render is.

        Turns without content come first, since text beside calls is moved or dropped by some templates.
        """
        for content, follow in product(("", None, self.marks.content), (False, True)):
            text = self.render({"content": content, "tool_calls": list(calls)}, follow=follow)
            start = len("".join(common_start(text, self.plain(follow=follow)))) if text else 0
            if text and all(mark in text[start:] for mark in shown):
                yield text[start:], text

    def plain(self, *, follow: bool = False) -> str:
        """A turn of content."""
        return self.render({"content": self.marks.content}, follow=follow)

    def close(self) -> str:
        """What follows the content of a last turn."""
        return self.plain().rpartition(self.marks.content)[2]
