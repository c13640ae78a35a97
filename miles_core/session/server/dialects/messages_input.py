"""Anthropic's messages as a conversation: blocks of content become texts, reasoning, calls and tool messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import (
    as_json,
    function_call,
    joined_texts,
    needed,
    part_text,
    refused_part,
    spoken,
)
from miles_core.session.server.fields import flag, items, mapping, only, wrong
from miles_core.session.server.request import ClientError
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TEXT_EXTRA = ("cache_control", "citations", "parsed_output")
_IN_ORDER = ("thinking", "text", "tool_use")
"""In this order an assistant's turn is written, and only so it can be read back."""


def read_conversation(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """``system`` and ``messages``.

    Raises:
        ClientError: naming the block that is wrong.
    """
    system = body.get("system")
    instructions = "" if system is None else joined_texts(system, "system", ("text",), _TEXT_EXTRA)
    messages = [Message("system", instructions)] if instructions else []
    given = items(body, "messages")
    if not given:
        raise wrong("messages", "a list of at least one message", body.get("messages"))
    for index, entry in enumerate(given):
        at = f"messages[{index}]"
        messages += _read_message(mapping(entry, at), f"{at}.")
    if messages[-1].role == "assistant":
        raise ClientError(
            "the last message is the assistant's, and beginning its answer for it is not supported",
            param=f"messages[{len(given) - 1}]",
            remedy="End the messages with the user's.",
        )
    return tuple(messages)


def _read_message(entry: Mapping[str, Any], at: str) -> list[Message]:
    only(entry, ("role", "content"), at=at)
    role, content = needed(entry, "role", at=at), entry.get("content")
    if role == "assistant":
        return [_read_turn(content, f"{at}content")]
    if role == "system":
        return [Message("system", joined_texts(content, f"{at}content", ("text",), _TEXT_EXTRA))]
    if role != "user":
        raise wrong(f"{at}role", "user, assistant or system", role)
    if isinstance(content, str):
        return [Message("user", content)]
    blocks = _blocks(content, f"{at}content")
    if not blocks:
        raise wrong(f"{at}content", "a text or at least one block", content)
    return list(_read_user(blocks, f"{at}content"))


def _read_user(blocks: list[Mapping[str, Any]], at: str) -> Iterator[Message]:
    """Results of tools as tool messages, the texts between them as user messages, in the order given."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{at}[{index}]"
        if block.get("type") != "tool_result":
            texts.append(part_text(block, where, ("text",), _TEXT_EXTRA))
            continue
        if texts:
            yield Message("user", "".join(texts))
            texts = []
        yield _read_result(block, f"{where}.")
    if texts:
        yield Message("user", "".join(texts))


def _read_result(block: Mapping[str, Any], at: str) -> Message:
    only(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), at=at)
    flag(block, "is_error", at=at)
    content = block.get("content")
    result = "" if content is None else joined_texts(content, f"{at}content", ("text",), _TEXT_EXTRA)
    return Message("tool", result, tool_call_id=needed(block, "tool_use_id", at=at, empty=False))


def _read_turn(content: object, at: str) -> Message:
    """An assistant's turn: its blocks say what it thought, then what it said, then what it called."""
    if isinstance(content, str):
        return Message("assistant", content)
    thought: list[str] = []
    said: list[str] = []
    calls: list[Mapping[str, Any]] = []
    reached = 0
    for index, block in enumerate(_blocks(content, at)):
        kind, where = block.get("type"), f"{at}[{index}]"
        if kind not in _IN_ORDER:
            raise refused_part(str(kind), where)
        if _IN_ORDER.index(kind) < reached:
            raise ClientError(
                f"{where} is {kind} after {_IN_ORDER[reached]}, and a turn thinks, then speaks, then calls tools",
                param=where,
                remedy="Send turns as they came, each in a message of its own.",
            )
        reached = _IN_ORDER.index(kind)
        if kind == "thinking":
            thought.append(_read_thinking(block, f"{where}."))
        elif kind == "text":
            said.append(part_text(block, where, ("text",), _TEXT_EXTRA))
        else:
            calls.append(_read_call(block, f"{where}."))
    return spoken(thought, "".join(said), calls)


def _read_thinking(block: Mapping[str, Any], at: str) -> str:
    only(block, ("type", "thinking", "signature"), at=at)
    return needed(block, "thinking", at=at)


def _read_call(block: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    only(block, ("type", "id", "name", "input", "cache_control"), at=at)
    if block.get("input") is None:
        raise wrong(f"{at}input", "an object", None)
    call_id, name = needed(block, "id", at=at, empty=False), needed(block, "name", at=at, empty=False)
    return function_call(call_id, name, as_json(block["input"]))


def _blocks(content: object, param: str) -> list[Mapping[str, Any]]:
    if not isinstance(content, list):
        raise wrong(param, "a text or a list of blocks", content)
    return [mapping(block, f"{param}[{index}]") for index, block in enumerate(content)]
