"""An answer as the events of Anthropic's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.messages_output import SIGNATURE, call_block, call_input, stop_fields, usage
from miles_core.session.server.dialects.parts import as_json, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from miles_core.session.parsing.reader import Delta
    from miles_core.session.server.answer import Answer


class MessagesStream:
    """Implements ``StreamWriter``: one block is open at a time, until what comes belongs to another."""

    def __init__(
        self, message_id: str, model: str, stop: Sequence[str], error_body: Callable[..., Mapping[str, Any]]
    ) -> None:
        self._id, self._model, self._stop, self._error_body = message_id, model, stop, error_body
        self._index = -1
        self._open: str | None = None

    def start(self, prompt_tokens: int) -> Iterator[bytes]:
        """An empty message."""
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        yield _event("message_start", message=message)

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """Pieces of blocks."""
        if delta.reasoning:
            yield from self._within({"type": "thinking", "thinking": "", "signature": ""})
            yield self._piece(type="thinking_delta", thinking=delta.reasoning)
        if delta.content:
            yield from self._within({"type": "text", "text": ""})
            yield self._piece(type="text_delta", text=delta.content)
        for call in delta.tool_calls:
            yield from self._close()
            yield from self._within(call_block(call))
            given = as_json(call_input(call["function"]["arguments"]))
            yield self._piece(type="input_json_delta", partial_json=given)

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """The end of the last block, the reason and the usage."""
        if self._index < 0:
            yield from self._within({"type": "text", "text": ""})
        yield from self._close()
        yield _event("message_delta", delta=stop_fields(answer.choices[0], self._stop), usage=usage(answer))
        yield _event("message_stop")

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> Iterator[bytes]:
        """The error in place of the rest."""
        yield event("error", self._error_body(status, message, code=code, param=param))

    def _within(self, block: Mapping[str, Any]) -> Iterator[bytes]:
        """Open a block, unless one of its type is."""
        if self._open == block["type"]:
            return
        yield from self._close()
        self._index, self._open = self._index + 1, block["type"]
        yield _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._piece(type="signature_delta", signature=SIGNATURE)
        yield _event("content_block_stop", index=self._index)
        self._open = None

    def _piece(self, **fields: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta=fields)


def _event(name: str, /, **fields: Any) -> bytes:
    return event(name, {"type": name, **fields})
