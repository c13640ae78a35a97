"""OpenAI's chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.server.dialects.chat_messages import parse_messages, parse_tools
from miles_core.session.server.dialects.chat_reply import chat_error, chat_reply
from miles_core.session.server.dialects.chat_stream import ChatStream
from miles_core.session.server.dialects.parts import json_schema, may_call
from miles_core.session.server.fields import (
    MAX_SEED,
    flag,
    items,
    mapping,
    only,
    stop_texts,
    temperature,
    text,
    whole,
    wrong,
)
from miles_core.session.server.request import ChatRequest, ClientError
from miles_core.session.server.untrainable import RESHAPING, refuse_untrainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.registry import OpenSession
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.dialect import StreamWriter

MAX_CHOICES = 128
MAX_STOPS = 4
# those of the choices count up from the one that is given
_MAX_SEED = MAX_SEED - MAX_CHOICES

_READ = frozenset(
    {"messages", "model", "tools", "tool_choice", "temperature", "max_tokens", "max_completion_tokens", "n", "stop"}
    | {"seed", "logprobs", "top_logprobs", "stream", "stream_options", "response_format", "modalities"}
)
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "safety_identifier", "reasoning_effort", "verbosity", "prediction"}
)
_KNOWN = _READ | _IGNORED | RESHAPING


class ChatDialect:
    """``/v1/chat/completions``."""

    path = "/v1/chat/completions"

    def parse(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The request in ``body``; see :class:`miles_core.session.server.dialect.Dialect`."""
        del opened
        refuse_untrainable(body)
        only(body, _KNOWN)
        _check_modalities(body)
        if whole(body, "top_logprobs"):
            raise ClientError("top_logprobs is not possible", param="top_logprobs", remedy="Leave it out.")
        return ChatRequest(
            messages=parse_messages(items(body, "messages")),
            tools=parse_tools(items(body, "tools")),
            sampling=_sampling(body),
            n=whole(body, "n", low=1, high=MAX_CHOICES) or 1,
            stream=flag(body, "stream"),
            logprobs=flag(body, "logprobs"),
            include_usage=_include_usage(body),
            model=text(body, "model") or "",
            parse_calls=may_call(body),
        )

    def reply(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """The body of an answer that does not stream."""
        return chat_reply(answer, logprobs=request.logprobs)

    def stream(self, request: ChatRequest, *, id: str, created: int, model: str) -> StreamWriter:  # noqa: A002
        """A writer for an answer that streams."""
        return ChatStream(request, id=id, created=created, model=model)

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
        """The body of an error."""
        return chat_error(status, message, code=code, param=param)


def _sampling(body: Mapping[str, Any]) -> SamplingRequest:
    old, new = whole(body, "max_tokens", low=1), whole(body, "max_completion_tokens", low=1)
    if old is not None and new is not None and old != new:
        raise ClientError(
            f"max_tokens = {old} and max_completion_tokens = {new} say different things",
            param="max_completion_tokens",
            remedy="Send one of them.",
        )
    return SamplingRequest(
        temperature=temperature(body),
        max_new_tokens=old if new is None else new,
        seed=whole(body, "seed", high=_MAX_SEED),
        stop=_stop(body),
        json_schema=_response_format(body),
    )


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    return stop_texts([] if stop is None else [stop] if isinstance(stop, str) else stop, "stop", MAX_STOPS)


def _response_format(body: Mapping[str, Any]) -> str | None:
    form = body.get("response_format")
    return None if form is None else json_schema(form, "response_format", within="json_schema")


def _include_usage(body: Mapping[str, Any]) -> bool:
    if body.get("stream_options") is None:
        return False
    options = mapping(body["stream_options"], "stream_options")
    only(options, {"include_usage", "include_obfuscation"}, at="stream_options.")
    return flag(options, "include_usage", at="stream_options.")


def _check_modalities(body: Mapping[str, Any]) -> None:
    if body.get("modalities") not in (None, ["text"]):
        raise wrong("modalities", '["text"]', body["modalities"])
