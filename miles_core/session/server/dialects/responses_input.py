"""The items of OpenAI's responses API as a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import function_call, joined_texts, needed, spoken
from miles_core.session.server.fields import items, mapping, only, text, wrong
from miles_core.session.server.request import ClientError
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_TEXT_EXTRA = ("annotations", "logprobs", "prompt_cache_breakpoint")
_TOLD = ("type", "id", "status")
"""What items say of themselves, and what says nothing to the policy."""
_THOUGHT, _SAID, _CALLED = range(3)


@dataclass
class _Turn:
    """An assistant's turn, whose items are reasoning, then a message, then calls."""

    reached: int = _THOUGHT
    thought: list[str] = field(default_factory=list)
    said: str = ""
    calls: list[Mapping[str, Any]] = field(default_factory=list)

    def message(self) -> Message:
        return spoken(self.thought, self.said, self.calls)


class ItemReader:
    """Collects messages; items of one turn of the assistant, which come one after the other, are one message."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: _Turn | None = None

    def messages(self) -> list[Message]:
        """Those of the items that were read."""
        self._end_turn()
        return self._messages

    def read(self, item: Mapping[str, Any], param: str) -> None:
        """Read the next item.

        Raises:
            ClientError: naming the field that is wrong.
        """
        at = f"{param}."
        kind = text(item, "type", "message", at=at)
        if kind == "message":
            self._read_message(item, at)
        elif kind == "reasoning":
            self._read_reasoning(item, at)
        elif kind == "function_call":
            self._read_call(item, at)
        elif kind == "function_call_output":
            self._read_output(item, at)
        else:
            raise ClientError(
                f"{param} is of the type {kind!r}, which is not taken here",
                param=param,
                remedy="Send messages, reasoning, function_call and function_call_output items, each whole.",
            )

    def _read_message(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_TOLD, "role", "content", "phase"), at=at)
        role = needed(item, "role", at=at)
        if role not in _ROLES:
            raise wrong(f"{at}role", " or ".join(_ROLES), role)
        content = joined_texts(item.get("content"), f"{at}content", _TEXTS, _TEXT_EXTRA)
        if role == "assistant":
            self._turn_at(_SAID).said = content
        else:
            self._add(Message(role, content))

    def _read_reasoning(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_TOLD, "summary", "content", "encrypted_content"), at=at)
        thought = item.get("content") or []
        if not thought and (item.get("summary") or item.get("encrypted_content")):
            raise ClientError(
                f"{at}content is missing: the policy cannot read a summary or what another server encrypted",
                param=f"{at}content",
                remedy="Send reasoning items as this server made them, or leave them out.",
            )
        if thought:
            self._turn_at(_THOUGHT).thought.append(joined_texts(thought, f"{at}content", ("reasoning_text",)))

    def _read_call(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_TOLD, "call_id", "name", "arguments"), at=at)
        call_id, name = needed(item, "call_id", at=at, empty=False), needed(item, "name", at=at, empty=False)
        self._turn_at(_CALLED).calls.append(function_call(call_id, name, needed(item, "arguments", at=at)))

    def _read_output(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_TOLD, "call_id", "output"), at=at)
        output = joined_texts(item.get("output"), f"{at}output", _TEXTS, _TEXT_EXTRA)
        self._add(Message("tool", output, tool_call_id=needed(item, "call_id", at=at, empty=False)))

    def _turn_at(self, stage: int) -> _Turn:
        """The turn that an item belongs to: a new one where it would go back, or say a second thing."""
        turn = self._turn
        if turn is not None and (stage < turn.reached or stage == turn.reached == _SAID):
            self._end_turn()
            turn = None
        self._turn = turn or _Turn()
        self._turn.reached = stage
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
        self._turn = None

    def _add(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)


def read_input(body: Mapping[str, Any]) -> list[Message]:
    """``input``, a text or items.

    Raises:
        ClientError: naming the item that is wrong.
    """
    given = body.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [Message("user", given)]
    reader = ItemReader()
    for index, item in enumerate(items(body, "input")):
        reader.read(mapping(item, f"input[{index}]"), f"input[{index}]")
    return reader.messages()
