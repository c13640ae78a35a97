"""The forms in which a template takes contents, arguments of calls, and tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.render import Chat

CALL_ID = "call0000{}"
"""Nine letters and digits: the strictest form of an identifier that templates ask for."""

Tools = list[dict[str, Any]] | None


@dataclass(frozen=True)
class Forms:
    """The forms that a template takes.

    ``parts``: roles whose content must be a list of parts; ``arguments``: ``mapping`` or ``string``; ``tools``:
    ``whole`` (``{type, function}``) or ``function`` (its inside); ``no_tools``: ``none`` or an ``empty`` list;
    ``calls``: whether calls are shown; ``no_text``: what stands beside calls, ``none``, ``empty`` or ``any`` of them.
    """

    parts: frozenset[str] = frozenset()
    arguments: str = "mapping"
    tools: str = "whole"
    no_tools: str = "none"
    calls: bool = True
    no_text: str = "any"

    def messages(self, messages: Sequence[Chat]) -> list[Chat]:
        """A conversation in these forms."""
        return [self._message(message) for message in messages]

    def _message(self, message: Chat) -> Chat:
        changed = {**message, "content": self._content(message.get("role"), message.get("content"))}
        if "content" not in message and not message.get("tool_calls"):
            changed["content"] = ""
        if message.get("tool_calls"):
            if not message.get("content") and self.no_text != "any":
                changed["content"] = None if self.no_text == "none" else ""
            changed["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        else:
            changed.pop("tool_calls", None)  # clients send null, and templates ask whether the key is there
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
            arguments = _parsed(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

    def of_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> Tools:
        """Tools in these forms."""
        if not tools:
            return None if self.no_tools == "none" else []
        if self.tools == "function":
            return [dict(tool.get("function", tool)) for tool in tools]
        return [dict(tool) for tool in tools]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _parsed(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments  # what the model wrote is no JSON: shown as it is
    return value if isinstance(value, dict) else arguments


def call(identifier: str, name: str, argument: str) -> dict[str, Any]:
    """A call with one argument."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": {"q": argument}}}


def tool(name: str) -> dict[str, Any]:
    """A tool with the argument of :func:`call`."""
    parameters = {"type": "object", "properties": {"q": {"type": "string", "description": "two"}}, "required": ["q"]}
    return {"type": "function", "function": {"name": name, "description": "three", "parameters": parameters}}
