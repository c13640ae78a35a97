"""What dialects share: texts in parts, calls, tools, and the fields that OpenAI's two APIs write alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.session.server.fields import items, mapping, only, shown, wrong
from miles_core.session.server.fields import text as text_of
from miles_core.session.server.request import ClientError
from miles_core.types import Message
from miles_core.types.frozen import frozen, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def needed(body: Mapping[str, Any], name: str, *, at: str, empty: bool = True) -> str:
    """A text that must be there; ``empty`` says whether it may be empty."""
    value = text_of(body, name, at=at)
    if value is None or (not value and not empty):
        raise wrong(f"{at}{name}", "a text" if empty else "a text that is not empty", body.get(name))
    return value


def joined_texts(content: object, param: str, kinds: Collection[str], extra: Collection[str] = ()) -> str:
    """A text, or the texts of its parts one after the other.

    ``kinds`` are the types of parts that hold text, ``extra`` the fields that such a part may have and that say nothing
    here.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(param, "a text or a list of parts", content)
    return "".join(part_text(part, f"{param}[{index}]", kinds, extra) for index, part in enumerate(content))


def part_text(part: object, param: str, kinds: Collection[str], extra: Collection[str] = ()) -> str:
    """The text of one part; see :func:`joined_texts`."""
    fields = mapping(part, param)
    kind = needed(fields, "type", at=f"{param}.")
    if kind not in kinds:
        raise refused_part(kind, param)
    only(fields, {"type", "text", *extra}, at=f"{param}.")
    return needed(fields, "text", at=f"{param}.")


def refused_part(kind: str, param: str) -> ClientError:
    """The error for content that is no text."""
    if "image" in kind:
        return ClientError(
            "images come with a later version of this server",
            param=param,
            code="unsupported_content",
            remedy="Send text.",
        )
    return ClientError(
        f"{param} has the type {kind!r}, which is not taken here",
        param=param,
        code="unsupported_content",
        remedy="Send text.",
    )


def read_tools(
    body: Mapping[str, Any], read: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """``tools``, each as ``read`` makes it of the tool and its place, such as ``tools[0].``."""
    given = [(mapping(tool, f"tools[{index}]"), f"tools[{index}].") for index, tool in enumerate(items(body, "tools"))]
    return tuple(read(tool, at) for tool, at in given)


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A tool in the form in which chat templates take them."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = {"type": "object", "properties": {}} if parameters is None else dict(parameters)
    made: Mapping[str, Any] = frozen({"type": "function", "function": function})
    return made


def function_call(call_id: str, name: str, arguments: str) -> Mapping[str, Any]:
    """A call as messages hold it; ``arguments`` is JSON text."""
    made: Mapping[str, Any] = frozen(
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    )
    return made


def spoken(thought: list[str], said: str, calls: list[Mapping[str, Any]]) -> Message:
    """An assistant's turn as sessions store it."""
    extra = frozen({"reasoning_content": "".join(thought)}) if thought else nothing()
    return Message("assistant", said, tool_calls=tuple(calls), extra=extra)


def as_json(value: object) -> str:
    """A value as JSON text, its characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def may_call(body: Mapping[str, Any]) -> bool:
    """Whether calls in the answer are calls, by OpenAI's ``tool_choice``.

    Raises:
        ClientError: if it would force one.
    """
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise forced(choice)
    return choice != "none"


def json_schema(form: object, param: str, *, within: str | None = None) -> str | None:
    """The schema in OpenAI's form of an answer, or in its field ``within``, as JSON text; ``None`` for plain text."""
    wanted = mapping(form, param)
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return '{"type": "object"}'
        case "json_schema":
            if within is not None:
                param = f"{param}.{within}"
                wanted = mapping(wanted.get(within), param)
            return json.dumps(mapping(wanted.get("schema"), f"{param}.schema"))
        case other:
            raise wrong(f"{param}.type", "text, json_object or json_schema", other)


def forced(choice: object) -> ClientError:
    """The error for a ``tool_choice`` other than ``auto`` or ``none``."""
    return ClientError(
        f"tool_choice must be auto or none; got {shown(choice)}",
        param="tool_choice",
        remedy="Ask for the call in a message: a call that is forced could not be trained.",
    )


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
