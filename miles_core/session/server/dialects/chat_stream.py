"""Chat completions as server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.session.server.dialects.chat_reply import chat_error, chat_logprobs, usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.parsing.reader import Delta
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.request import ChatRequest


class ChatStream:
    """Chunks as OpenAI sends them; logprobs come with the last chunk of a choice."""

    def __init__(self, request: ChatRequest, *, id: str, created: int, model: str) -> None:  # noqa: A002
        self._request = request
        self._head = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": created, "model": model}

    def start(self, prompt_tokens: int) -> Iterator[bytes]:
        """The role of each choice."""
        del prompt_tokens
        for index in range(self._request.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """Text, and calls whole."""
        if delta.reasoning:
            yield self._chunk(index, {"reasoning_content": delta.reasoning})
        if delta.content:
            yield self._chunk(index, {"content": delta.content})
        if delta.tool_calls:
            calls = [{"index": number, **call} for number, call in enumerate(delta.tool_calls)]
            yield self._chunk(index, {"tool_calls": calls})

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Why each choice ended, and usage if it was asked for."""
        for choice in answer.choices:
            shown = chat_logprobs(choice) if self._request.logprobs else None
            yield self._chunk(choice.index, {}, finish=choice.finish, logprobs=shown)
        if self._request.include_usage:
            yield _event({**self._head, "choices": [], "usage": usage(answer)})
        yield b"data: [DONE]\n\n"

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> Iterator[bytes]:
        """An error that SDKs raise."""
        yield _event(chat_error(status, message, code=code, param=param))

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "choices": [choice]}
        return _event({**chunk, "usage": None} if self._request.include_usage else chunk)


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n".encode()
