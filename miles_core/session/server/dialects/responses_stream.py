"""An answer as the events of OpenAI's responses API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.parts import event
from miles_core.session.server.dialects.responses_output import (
    call_item,
    finished,
    last_status,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from miles_core.session.parsing.reader import Delta
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.request import ChatRequest


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of item with one text in it; ``beside`` are fields that its events have to have."""

    name: str
    item: Callable[[str, str, str], dict[str, Any]]
    part: Callable[[str], dict[str, Any]]
    beside: Mapping[str, Any]


_REASONING = _Form("response.reasoning_text", reasoning_item, reasoning_part, {})
_MESSAGE = _Form("response.output_text", message_item, text_part, {"logprobs": []})


class _OpenItem:
    """An item whose text is still growing."""

    def __init__(self, form: _Form, index: int, response_id: str) -> None:
        self.form, self.index = form, index
        self.pieces: list[str] = []
        self._response_id = response_id
        self.place = {"output_index": index, "item_id": self.item("", "in_progress")["id"], "content_index": 0}

    def item(self, text: str, status: str) -> dict[str, Any]:
        return self.form.item(self._response_id, text, status)


class ResponsesStream:
    """Implements ``StreamWriter``: one item is open at a time, until what comes belongs to another."""

    def __init__(self, response_id: str, created: int, model: str, request: ChatRequest) -> None:
        self._id, self._request = response_id, request
        self._unfinished = unfinished(response_id, created, model, request)
        self._events = 0
        self._items = 0
        self._calls = 0
        self._open: _OpenItem | None = None

    def start(self, prompt_tokens: int) -> Iterator[bytes]:
        """An empty response."""
        yield self._event("response.created", response=self._unfinished)
        yield self._event("response.in_progress", response=self._unfinished)

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """Pieces of items."""
        if delta.reasoning:
            yield from self._piece(_REASONING, delta.reasoning)
        if delta.content:
            yield from self._piece(_MESSAGE, delta.content)
        for call in delta.tool_calls:
            yield from self._close("completed")
            yield from self._call(call)

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """The end of the last item, and the whole response."""
        if not self._items:
            yield from self._piece(_MESSAGE, "")
        status = last_status(answer.choices[0])
        yield from self._close(status)
        yield self._event(f"response.{status}", response=finished(answer, self._request))

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> Iterator[bytes]:
        """A failed response, and an error, which is what SDKs raise."""
        error = {"code": "server_error", "message": message}
        yield self._event("response.failed", response={**self._unfinished, "status": "failed", "error": error})
        told = {"type": "server_error", "message": message, "code": code, "param": param}
        yield self._event("error", code=code, message=message, param=param, error=told)

    def _piece(self, form: _Form, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.form is not form:
            yield from self._close("completed")
            self._open = _OpenItem(form, self._items, self._id)
            self._items += 1
            begun = {**self._open.item("", "in_progress"), "content": []}
            yield self._event("response.output_item.added", output_index=self._open.index, item=begun)
            yield self._event("response.content_part.added", **self._open.place, part=form.part(""))
        self._open.pieces.append(text)
        if text:
            yield self._event(f"{form.name}.delta", **self._open.place, delta=text, **form.beside)

    def _close(self, status: str) -> Iterator[bytes]:
        item = self._open
        if item is None:
            return
        text = "".join(item.pieces)
        yield self._event(f"{item.form.name}.done", **item.place, text=text, **item.form.beside)
        yield self._event("response.content_part.done", **item.place, part=item.form.part(text))
        yield self._event("response.output_item.done", output_index=item.index, item=item.item(text, status))
        self._open = None

    def _call(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        begun = call_item(self._id, self._calls, call, "in_progress")
        whole = call_item(self._id, self._calls, call, "completed")
        place = {"output_index": self._items, "item_id": whole["id"]}
        self._calls, self._items = self._calls + 1, self._items + 1
        yield self._event("response.output_item.added", output_index=place["output_index"], item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=whole["arguments"])
        yield self._event(
            "response.function_call_arguments.done", **place, arguments=whole["arguments"], name=whole["name"]
        )
        yield self._event("response.output_item.done", output_index=place["output_index"], item=whole)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number = self._events
        self._events += 1
        return event(name, {"type": name, "sequence_number": number, **fields})
