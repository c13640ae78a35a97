"""OpenAI's responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.server.dialects.chat_reply import chat_error
from miles_core.session.server.dialects.parts import json_schema, may_call
from miles_core.session.server.dialects.responses_input import read_input
from miles_core.session.server.dialects.responses_output import ResponsesRequest, finished
from miles_core.session.server.dialects.responses_previous import previous_messages, remembering
from miles_core.session.server.dialects.responses_stream import ResponsesStream
from miles_core.session.server.dialects.responses_tools import function_tools
from miles_core.session.server.fields import flag, items, mapping, only, temperature, text, whole, wrong
from miles_core.session.server.request import ClientError
from miles_core.session.server.untrainable import RESHAPING, refuse_untrainable
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.registry import OpenSession
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.request import ChatRequest

_READ = frozenset(
    {"model", "input", "instructions", "previous_response_id", "tools", "tool_choice", "temperature"}
    | {"max_output_tokens", "text", "stream", "store", "include", "top_logprobs"}
)
_IGNORED = frozenset(
    {"max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "reasoning"}
    | {"prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "truncation", "user"}
)
_KNOWN = _READ | _IGNORED | RESHAPING
_ELSEWHERE = {
    "background": "Wait for the answer, or stream it.",
    "conversation": "Use previous_response_id, or send the items.",
    "prompt": "Send the text of the prompt.",
}
_REPEATED = ("instructions", "previous_response_id", "metadata", "store", "text", "reasoning", "user")
_LOGPROBS = "message.output_text.logprobs"


class ResponsesDialect:
    """``/v1/responses``; what a session has answered can be named by ``previous_response_id``."""

    path = "/v1/responses"

    def parse(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The request in ``body``; see :class:`miles_core.session.server.dialect.Dialect`."""
        _refuse(body)
        instructions = text(body, "instructions")
        first = [Message("system", instructions)] if instructions else []
        given = read_input(body)
        if not given:
            raise wrong("input", "a text or a list of at least one item", body.get("input"))
        return ResponsesRequest(
            messages=(*first, *previous_messages(text(body, "previous_response_id"), opened), *given),
            tools=function_tools(body),
            sampling=_sampling(body),
            stream=flag(body, "stream"),
            model=text(body, "model") or "",
            parse_calls=may_call(body),
            answered=remembering(opened, instructed=bool(first)) if flag(body, "store", True) else None,
            repeated={name: body[name] for name in _REPEATED if name in body},
        )

    def reply(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """A whole response."""
        return finished(answer, request)

    def stream(self, request: ChatRequest, *, id: str, created: int, model: str) -> ResponsesStream:  # noqa: A002
        """A response as events."""
        return ResponsesStream(id, created, model, request)

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
        """The body of an error, as in chat; what is wrong with a message is wrong with the input."""
        place = "input" if param is not None and param.startswith("messages") else param
        return chat_error(status, message, code=code, param=place)


def _refuse(body: Mapping[str, Any]) -> None:
    """Refuse what this server does not do."""
    refuse_untrainable(body)
    for name, remedy in _ELSEWHERE.items():
        if body.get(name) not in (None, False):
            raise ClientError(f"{name} is not possible here", param=name, remedy=remedy)
    only(body, _KNOWN | set(_ELSEWHERE))
    if _LOGPROBS in items(body, "include") or whole(body, "top_logprobs"):
        raise ClientError(
            "logprobs are not part of responses here",
            param="include" if body.get("include") else "top_logprobs",
            remedy="Use chat completions with logprobs, or read them in the session's record.",
        )


def _sampling(body: Mapping[str, Any]) -> SamplingRequest:
    return SamplingRequest(
        temperature=temperature(body),
        max_new_tokens=whole(body, "max_output_tokens", low=1),
        json_schema=_text_format(body),
    )


def _text_format(body: Mapping[str, Any]) -> str | None:
    if body.get("text") is None:
        return None
    config = mapping(body["text"], "text")
    only(config, {"format", "verbosity"}, at="text.")
    return None if config.get("format") is None else json_schema(config["format"], "text.format")
