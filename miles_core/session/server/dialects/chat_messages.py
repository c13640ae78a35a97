"""Messages and tools in OpenAI's chat form, as clients send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import needed, refused_part
from miles_core.session.server.fields import items, mapping, only, text, wrong
from miles_core.session.server.request import ClientError
from miles_core.types import Message
from miles_core.types.frozen import FrozenDict, frozen, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REASONING = ("reasoning_content", "reasoning")
# What replies of servers and the message objects of SDKs hold beside what is read.
_IGNORED = {"refusal", "annotations", "audio", "provider_specific_fields", "thinking_blocks", "reasoning_items"}
_READ = {"role", "content", "name", "tool_calls", "tool_call_id"}


def parse_messages(given: Sequence[Any]) -> tuple[Message, ...]:
    """The messages of a request.

    Raises:
        ClientError: naming the field that is wrong.
    """
    return tuple(_message(mapping(one, f"messages[{index}]"), f"messages[{index}].") for index, one in enumerate(given))


def _message(given: Mapping[str, Any], at: str) -> Message:
    role = text(given, "role", at=at)
    if not role:
        raise wrong(f"{at}role", "a text such as user", given.get("role"))
    speaks = role == "assistant"
    only(given, _READ | _IGNORED | (set(_REASONING) if speaks else set()), at=at)
    reasoning = next((found for name in _REASONING if (found := text(given, name, at=at))), None) if speaks else None
    calls = items(given, "tool_calls", at=at)
    if calls and not speaks:
        raise ClientError(f"{at}tool_calls: only an assistant message may have calls", param=f"{at}tool_calls")
    return Message(
        role=role,
        content=_content(given.get("content"), f"{at}content", optional=speaks),
        tool_calls=tuple(_call(mapping(call, place), f"{place}.") for place, call in _placed(calls, f"{at}tool_calls")),
        tool_call_id=text(given, "tool_call_id", at=at),
        name=text(given, "name", at=at),
        extra=frozen({"reasoning_content": reasoning}) if reasoning else nothing(),
    )


def _placed(values: Sequence[Any], at: str) -> list[tuple[str, Any]]:
    return [(f"{at}[{index}]", value) for index, value in enumerate(values)]


def _content(content: object, at: str, *, optional: bool) -> str:
    """Text, or text parts joined."""
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, list):
        raise wrong(at, "a text or a list of parts", content)
    return "".join(_part(mapping(part, place), place) for place, part in _placed(content, at))


def _part(part: Mapping[str, Any], at: str) -> str:
    kind = part.get("type")
    if kind == "image_url":
        raise refused_part(kind, at)
    value = text(part, "text", at=f"{at}.")
    if kind != "text" or value is None:
        raise wrong(at, '{"type": "text", "text": ...}', dict(part))
    return value


def _call(call: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    # `index` and the other one are what SDKs add when they put a stream together
    only(call, {"id", "type", "function", "index", "provider_specific_fields"}, at=at)
    if call.get("type", "function") != "function":
        raise wrong(f"{at}type", '"function"', call["type"])
    function = mapping(call.get("function"), f"{at}function")
    only(function, {"name", "arguments", "parsed_arguments"}, at=f"{at}function.")
    texts = {name: needed(function, name, at=f"{at}function.") for name in ("name", "arguments")}
    return FrozenDict({"id": needed(call, "id", at=at), "type": "function", "function": FrozenDict(texts)})


def parse_tools(given: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools of a request, as they are: the chat template shows them to the policy.

    Raises:
        ClientError: naming the one that is wrong.
    """
    for place, tool in _placed(given, "tools"):
        if mapping(tool, place).get("type") != "function":
            raise wrong(f"{place}.type", '"function"', tool.get("type"))
        function = mapping(tool.get("function"), f"{place}.function")
        needed(function, "name", at=f"{place}.function.", empty=False)
    return tuple(frozen(tool) for tool in given)
