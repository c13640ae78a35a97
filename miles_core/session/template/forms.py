"""The forms in which a template takes contents, arguments of calls, and tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.render import Chat

CALL_ID = "call0000{}"
"""Nine letters and digits: the strictest form of an identifier that templates ask for."""

NOTHING: tuple[Any, ...] = (None, [], ())
"""Values of fields that clients send where they have nothing to say: templates ask whether a field is there."""

Tools = list[dict[str, Any]] | None


@dataclass(frozen=True)
class Forms:
    """The forms that a template takes.

    ``parts``: roles whose content must be a list of parts; ``arguments``: ``mapping`` or ``string``; ``tools``:
    ``whole`` (``{type, function}``) or ``function`` (its inside); ``no_tools``: ``none`` or an ``empty`` list;
    ``calls``: whether calls are shown; ``no_text``: what stands beside calls, ``none``, ``empty`` or ``any`` of them;
    ``raw``: whether arguments that are no JSON object are shown as they are.
    """

    parts: frozenset[str] = frozenset()
    arguments: str = "mapping"
    tools: str = "whole"
    no_tools: str = "none"
    calls: bool = True
    no_text: str = "any"
    raw: bool = True

    def messages(self, messages: Sequence[Chat]) -> list[Chat]:
        """A conversation in these forms."""
        return [self._message(message) for message in messages]

    def _message(self, message: Chat) -> Chat:
        changed = {key: value for key, value in message.items() if value not in NOTHING}
        changed["content"] = self._content(message.get("role"), message.get("content"))
        if "content" not in message and not message.get("tool_calls"):
            changed["content"] = ""
        if message.get("tool_calls"):
            if not message.get("content") and self.no_text != "any":
                changed["content"] = None if self.no_text == "none" else ""
            changed["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return changed

    def _content(self, role: object, content: Any) -> Any:
        if isinstance(content, str) and role in self.parts:
            return [{"type": "text", "text": content}]
        if isinstance(content, list | tuple) and role not in self.parts and all(map(_is_text, content)):
            return "".join(part["text"] for part in content)
        return content

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function")
        if not isinstance(function, dict):
            return dict(call)
        arguments = function.get("arguments")
        if self.arguments == "string" and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif self.arguments == "mapping" and isinstance(arguments, str):
            arguments = self._parsed(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

    def _parsed(self, arguments: str) -> Any:
        try:
            value = json.loads(arguments)
            if not isinstance(value, dict):
                raise TypeError(f"got {type(value).__name__}")
        except (ValueError, TypeError) as error:
            if self.raw:
                return arguments  # what the model wrote is no object: shown as it is
            raise SessionError(
                f"the arguments of a call must be a JSON object; got {arguments[:60]!r} ({error})",
                remedy="This chat template shows no other arguments: correct them, or leave out the call.",
            ) from error
        return value

    def of_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> Tools:
        """Tools in these forms."""
        if not tools:
            return None if self.no_tools == "none" else []
        if self.tools == "function":
            return [dict(tool.get("function", tool)) for tool in tools]
        return [dict(tool) for tool in tools]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def call(identifier: str, name: str, argument: str) -> dict[str, Any]:
    """A call with one argument."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": {"q": argument}}}


def tool(name: str) -> dict[str, Any]:
    """A tool with the argument of :func:`call`."""
    parameters = {"type": "object", "properties": {"q": {"type": "string", "description": "two"}}, "required": ["q"]}
    return {"type": "function", "function": {"name": name, "description": "three", "parameters": parameters}}
