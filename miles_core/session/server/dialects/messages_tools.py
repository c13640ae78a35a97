"""The tools of Anthropic's messages as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import forced, function_tool, needed, read_tools
from miles_core.session.server.fields import mapping, only, text
from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOOL_EXTRA = (
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
    "strict",
)


def custom_tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools of a request.

    Raises:
        ClientError: naming the one that is wrong, or that a server would run itself.
    """
    return read_tools(body, _read_tool)


def may_call(body: Mapping[str, Any]) -> bool:
    """Whether calls in the answer are calls.

    Raises:
        ClientError: if ``tool_choice`` would force one.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return True
    kind = mapping(choice, "tool_choice").get("type")
    if kind not in ("auto", "none"):
        raise forced(choice)
    return bool(kind == "auto")


def _read_tool(tool: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    kind = text(tool, "type", "custom", at=at)
    if kind != "custom":
        raise ClientError(
            f"{at}type is {kind!r}, a tool that the API runs itself",
            param=f"{at}type",
            remedy="Give tools with name, description and input_schema, and run them in the agent.",
        )
    only(tool, ("type", "name", "description", "input_schema", *_TOOL_EXTRA), at=at)
    name = needed(tool, "name", at=at, empty=False)
    return function_tool(name, text(tool, "description", at=at), mapping(tool.get("input_schema"), f"{at}input_schema"))
