"""Answers and errors in OpenAI's chat form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_core.session.server.answer import Answer, Choice

LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token of no probability: JSON has no infinity."""

_SERVER, _UNAUTHORIZED = 500, 401


def chat_reply(answer: Answer, *, logprobs: bool) -> dict[str, Any]:
    """A ``chat.completion``."""
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [_choice(choice, logprobs=logprobs) for choice in answer.choices],
        "usage": usage(answer),
    }


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens of the prompt, which is the same for all choices, and of what was generated."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _choice(choice: Choice, *, logprobs: bool) -> dict[str, Any]:
    said = choice.message
    calls = [dict(call) for call in said.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": said.text or (None if calls else ""), "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if calls:
        message["tool_calls"] = calls
    shown = chat_logprobs(choice) if logprobs else None
    return {"index": choice.index, "message": message, "logprobs": shown, "finish_reason": choice.finish}


def chat_logprobs(choice: Choice) -> dict[str, Any]:
    """The logprobs of all generated tokens, reasoning, calls and the stop token included."""
    return {"content": [_token(text, logprob) for text, logprob in choice.tokens()], "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    # the bytes of a piece of a character are not known: its text is only a stand-in
    raw = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": raw, "top_logprobs": []}


def chat_error(status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
    """The body of an error."""
    kind = "invalid_request_error" if status < _SERVER else "server_error"
    if status == _UNAUTHORIZED:
        kind = "authentication_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
