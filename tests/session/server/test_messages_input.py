"""Anthropic's messages as conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.registry import OpenSession
from miles_core.session.server.dialects.messages import MessagesDialect
from miles_core.session.server.request import ChatRequest, ClientError
from miles_core.types import Message

QUESTION = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatRequest:
    opened = OpenSession("s", None, kept=False, now=0.0)  # type: ignore[arg-type]
    body = {"model": "m", "max_tokens": 8, "messages": [QUESTION], **fields}
    return MessagesDialect().parse(json.loads(json.dumps(body)), opened)


def test_system_text_and_blocks_become_the_first_message() -> None:
    blocks = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind", "cache_control": {"type": "ephemeral"}}]
    for system in ("be kind", blocks):
        assert parse(system=system).messages == (Message("system", "be kind"), Message("user", "hi"))
    assert parse(system="").messages == (Message("user", "hi"),)


def test_results_of_tools_become_tool_messages_in_the_order_given() -> None:
    turn = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "anything"},
            {"type": "text", "text": "Look."},
            {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1, "ü": None}},
            {"type": "tool_use", "id": "b", "name": "add", "input": {}},
        ],
    }
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "2", "is_error": False},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "3"}], "is_error": True},
            {"type": "text", "text": "go "},
            {"type": "text", "text": "on"},
        ],
    }
    said, first, second, user = parse(messages=[QUESTION, turn, results]).messages[1:]
    assert (said.content, said.extra) == ("Look.", {"reasoning_content": "hm"})
    assert [call["function"] for call in said.tool_calls] == [
        {"name": "add", "arguments": '{"x": 1, "ü": null}'},
        {"name": "add", "arguments": "{}"},
    ]
    assert first == Message("tool", "2", tool_call_id="a")
    assert second == Message("tool", "3", tool_call_id="b")
    assert user == Message("user", "go on")


def test_tools_become_functions_and_what_says_nothing_here_is_dropped() -> None:
    tool = {"name": "add", "description": "adds", "input_schema": {"type": "object"}, "strict": True, "type": "custom"}
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    request = parse(tools=[tool], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert request.tools == ({"type": "function", "function": function},)
    assert request.parse_calls
    assert not parse(tools=[tool], tool_choice={"type": "none"}).parse_calls


def test_sampling_and_format_are_read() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    request = parse(
        temperature=0.5, stop_sequences=["\n", "END"], stream=True, output_config={"format": form, "effort": "low"}
    )
    assert request.sampling == SamplingRequest(0.5, 8, None, ("\n", "END"), '{"type": "object"}')
    assert request.stream
    assert request.model == "m"


def test_what_is_ignored_changes_nothing() -> None:
    assert parse(metadata={"user_id": "u"}, service_tier="auto", thinking={"type": "adaptive"}, top_p=1) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{**QUESTION, "name": "bob"}]}, "messages[0].name"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "The answer is"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, QUESTION]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}, QUESTION]},
            "messages[0].content[0].input",
        ),
        ({"system": 5}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_turn_out_of_order_is_refused() -> None:
    blocks = [{"type": "tool_use", "id": "a", "name": "f", "input": {}}, {"type": "text", "text": "late"}]
    with pytest.raises(ClientError, match="text after tool_use") as raised:
        parse(messages=[{"role": "assistant", "content": blocks}, QUESTION])
    assert raised.value.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_the_type_of_their_status(status: int, kind: str) -> None:
    body = MessagesDialect().error(status, "no", code="why", param=None)
    assert body == {"type": "error", "error": {"type": kind, "message": "no", "details": {"error_code": "why"}}}
