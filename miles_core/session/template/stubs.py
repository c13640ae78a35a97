"""Stand-ins for the generated turn: plain text, or the calls that the appended results answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from miles_core.session.template.forms import CALL_ID
from miles_core.session.template.turn import ASKING, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from miles_core.session.template.render import Chat
    from miles_core.session.template.words import Words

Calls = list[tuple[str, str]]
"""Identifier and name of each call."""


def plain(words: Words) -> Chat:
    """An answer of text."""
    return {"role": "assistant", "content": words.sentinel}


def calling(turn: Turn, words: Words, *, more: int = 0) -> Iterator[Chat]:
    """The turn with calls, its content first none, then empty, then text: templates gate on each of them.

    The last call's argument is the sentinel; or with ``more`` the one before ``more`` calls whose arguments are marks.
    """
    named = calls(turn)
    arguments = ["x"] * (len(named) - 1) + [words.sentinel]
    for extra in range(more):
        named.append((CALL_ID.format(9 - extra), named[-1][1]))
        arguments.append(words.mark(extra))
    for declared in (True, False):
        keys = [_argument(turn.tools, name) if declared else "q" for _, name in named]
        if not declared and all(key == "q" for key in (_argument(turn.tools, name) for _, name in named)):
            return
        written = [
            {"id": identifier, "type": "function", "function": {"name": name, "arguments": {key: argument}}}
            for (identifier, name), key, argument in zip(named, keys, arguments, strict=True)
        ]
        for content in (None, "", "text"):
            yield {"role": "assistant", "content": content, "tool_calls": written}


def calls(turn: Turn) -> Calls:
    """The calls of a turn: those that the caller parsed, or else one for each result that follows."""
    results = [message for message in turn.appended if message.get("role") not in ASKING]
    parsed = [_named(each, index) for index, each in enumerate(turn.calls)]
    if parsed and {result.get("tool_call_id") for result in results} <= {identifier for identifier, _ in parsed}:
        return parsed
    names = called_names(turn, max(1, len(results)))
    return [
        (
            result.get("tool_call_id") or CALL_ID.format(index),
            result.get("name") or (names[index] if index < len(names) else "call"),
        )
        for index, result in enumerate(results or [{}])
    ]


def _named(each: Mapping[str, Any], index: int) -> tuple[str, str]:
    function = each.get("function")
    name = function.get("name") if isinstance(function, dict) else each.get("name")
    return str(each.get("id") or CALL_ID.format(index)), str(name or "call")


def called_names(turn: Turn, count: int) -> Sequence[str]:
    """Names of the declared tools in the order in which the turn says them, if it says ``count``; else none."""
    found: list[tuple[int, str]] = []
    for tool in turn.tools:
        name = tool.get("function", tool).get("name")
        at = turn.generated.find(name) if isinstance(name, str) and name else -1
        while at >= 0:
            found.append((at, name))
            at = turn.generated.find(name, at + len(name))
    names = [name for _, name in sorted(found)]
    if len(names) == count:
        return names
    return list(dict.fromkeys(names)) if count == len(set(names)) else []


def _argument(tools: Sequence[Mapping[str, Any]], name: str) -> str:
    """An argument that the tool declares, of text where there is one: some templates look its type up."""
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters") if isinstance(function, dict) else None
        declared = parameters.get("properties") if isinstance(parameters, dict) else None
        if function.get("name") == name and isinstance(declared, dict) and declared:
            texts = [key for key, kind in declared.items() if isinstance(kind, dict) and kind.get("type") == "string"]
            return str((texts or list(declared))[0])
    return "q"


def with_result(turn: Turn) -> Turn:
    """The turn followed by the result of one call."""
    names = called_names(turn, 1)
    result: Chat = {"role": "tool", "content": "x", "tool_call_id": CALL_ID.format(0)}
    return replace(turn, appended=({**result, "name": names[0] if names else "call"},))


def of_results(turn: Turn) -> Turn:
    """The turn with its calls written down, so that something else may follow it."""
    return replace(
        turn,
        calls=tuple({"id": identifier, "function": {"name": name}} for identifier, name in calls(turn)),
        appended=(),
    )
