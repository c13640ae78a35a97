"""Anthropic's messages API."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.server.dialects.messages_input import read_conversation
from miles_core.session.server.dialects.messages_output import content_blocks, stop_fields, usage
from miles_core.session.server.dialects.messages_stream import MessagesStream
from miles_core.session.server.dialects.messages_tools import custom_tools, may_call
from miles_core.session.server.fields import flag, items, mapping, only, stop_texts, temperature, text, whole, wrong
from miles_core.session.server.request import ChatRequest, ClientError
from miles_core.session.server.untrainable import RESHAPING, refuse_untrainable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.registry import OpenSession
    from miles_core.session.server.answer import Answer

_SERVER = 500
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_READ = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "temperature"}
    | {"output_config"}
)
_IGNORED = frozenset(
    {"cache_control", "context_management", "diagnostics", "inference_geo", "metadata", "service_tier", "speed"}
    | {"thinking", "user_profile_id", "workspace_id"}
)
_KNOWN = _READ | _IGNORED | RESHAPING


class MessagesDialect:
    """Implements ``Dialect`` and ``CountingDialect`` for Anthropic's clients."""

    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"

    def parse(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The request in ``body``.

        Raises:
            ClientError: naming the field that is wrong.
        """
        most = whole(body, "max_tokens", low=1)
        if most is None:
            raise wrong("max_tokens", "a whole number of at least 1", None)
        request = self.parse_count(body, opened)
        sampling = SamplingRequest(
            temperature=temperature(body),
            max_new_tokens=most,
            stop=stop_texts(items(body, "stop_sequences"), "stop_sequences"),
            json_schema=_json_schema(body),
        )
        return replace(request, sampling=sampling, stream=flag(body, "stream"))

    def parse_count(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The prompt in ``body``.

        Raises:
            ClientError: naming the field that is wrong.
        """
        del opened
        refuse_untrainable(body)
        _refuse_thread(body)
        only(body, _KNOWN)
        return ChatRequest(
            read_conversation(body), custom_tools(body), model=text(body, "model") or "", parse_calls=may_call(body)
        )

    def count(self, tokens: int) -> dict[str, Any]:
        """How many tokens a prompt has."""
        return {"input_tokens": tokens}

    def reply(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """A message."""
        (choice,) = answer.choices
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": content_blocks(choice),
            **stop_fields(choice, request.sampling.stop),
            "usage": usage(answer),
        }

    def stream(self, request: ChatRequest, *, id: str, created: int, model: str) -> MessagesStream:  # noqa: A002
        """A message as events."""
        return MessagesStream(f"msg_{id}", model, request.sampling.stop, self.error)

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
        """An error of the type that belongs to its status; the message names the field."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < _SERVER else "api_error")
        details = {} if code is None else {"details": {"error_code": code}}
        return {"type": "error", "error": {"type": kind, "message": message, **details}}


def _refuse_thread(body: Mapping[str, Any]) -> None:
    """Refuse that the server keeps the conversation, in the words that let SDKs go on without it."""
    if body.get("thread") is not None:
        raise ClientError(
            "thread is not possible here",
            param="thread",
            code="thread_unsupported_request",
            remedy="Send all messages each time: what is stored is found again.",
        )


def _json_schema(body: Mapping[str, Any]) -> str | None:
    config = body.get("output_config")
    if config is None:
        return None
    fields = mapping(config, "output_config")
    only(fields, ("effort", "format"), at="output_config.")
    if fields.get("format") is None:
        return None
    form = mapping(fields["format"], "output_config.format")
    if form.get("type") != "json_schema":
        raise wrong("output_config.format.type", "json_schema", form.get("type"))
    return json.dumps(mapping(form.get("schema"), "output_config.format.schema"))
