"""The tools of OpenAI's responses API as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import function_tool, needed, read_tools
from miles_core.session.server.fields import mapping, only, text
from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Mapping


def function_tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools of a request.

    Raises:
        ClientError: naming the one that is wrong, or that a server would run itself.
    """
    return read_tools(body, _read_tool)


def _read_tool(tool: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    kind = needed(tool, "type", at=at)
    if kind != "function":
        raise ClientError(
            f"{at}type is {kind!r}, a tool that the API runs itself",
            param=f"{at}type",
            remedy="Give tools of the type function, and run them in the agent.",
        )
    only(tool, ("type", "name", "description", "parameters", "strict"), at=at)
    parameters = tool.get("parameters")
    name, description = needed(tool, "name", at=at, empty=False), text(tool, "description", at=at)
    return function_tool(name, description, None if parameters is None else mapping(parameters, f"{at}parameters"))
