"""The items of OpenAI's responses API as conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.registry import OpenSession
from miles_core.session.server.dialects.responses import ResponsesDialect
from miles_core.session.server.request import ChatRequest, ClientError
from miles_core.types import Message


def parse(**fields: Any) -> ChatRequest:
    opened = OpenSession("s", None, kept=False, now=0.0)  # type: ignore[arg-type]
    body = {"model": "m", "input": "hi", **fields}
    return ResponsesDialect().parse(json.loads(json.dumps(body)), opened)


def item_call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": '{"x":1}', "id": f"fc_{call_id}"}


def item_output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "2"}


def test_text_and_instructions_become_messages() -> None:
    request = parse(instructions="be kind")
    assert request.messages == (Message("system", "be kind"), Message("user", "hi"))


def test_items_of_one_turn_become_one_message() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Look.", "logprobs": []}],
    }
    thought = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    given = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, thought, said, item_call("a")]
    given += [item_call("b"), item_output("a"), item_output("b"), {**said, "status": "completed"}, said]
    user, turn, first, second, third, fourth = parse(input=given).messages
    assert user == Message("user", "hi")
    assert (turn.content, turn.extra, len(turn.tool_calls)) == ("Look.", {"reasoning_content": "hm"}, 2)
    assert turn.tool_calls[0] == {
        "id": "a",
        "type": "function",
        "function": {"name": "add", "arguments": '{"x":1}'},
    }
    assert (first, second) == (Message("tool", "2", tool_call_id="a"), Message("tool", "2", tool_call_id="b"))
    assert third == fourth == Message("assistant", "Look.")


def test_a_turn_that_only_called_is_a_message_of_its_own_after_results() -> None:
    given = [item_call("a"), item_output("a"), item_call("b"), item_output("b")]
    assert [message.role for message in parse(input=given).messages] == ["assistant", "tool", "assistant", "tool"]


def test_reasoning_without_text_may_come_back_empty() -> None:
    given = [{"type": "reasoning", "id": "rs", "summary": []}, {"role": "user", "content": "hi"}]
    assert parse(input=given).messages == (Message("user", "hi"),)


def test_tools_sampling_and_format_are_read() -> None:
    tool = {"type": "function", "name": "add", "description": None, "parameters": {"type": "object"}, "strict": True}
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    request = parse(tools=[tool], tool_choice="none", temperature=0, max_output_tokens=9, text={"format": form})
    function = {"name": "add", "parameters": {"type": "object"}}
    assert request.tools == ({"type": "function", "function": function},)
    assert not request.parse_calls
    assert request.sampling == SamplingRequest(0.0, 9, json_schema='{"type": "object"}')
    assert parse(text={"format": {"type": "json_object"}}).sampling.json_schema == '{"type": "object"}'
    assert parse(text={"format": {"type": "text"}, "verbosity": "low"}).sampling.json_schema is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_what_is_ignored_changes_nothing_that_is_asked_of_the_policy() -> None:
    plain, more = parse(), parse(truncation="auto", user="u", reasoning={"effort": "low"}, background=False, top_p=1.0)
    assert (more.messages, more.tools, more.sampling) == (plain.messages, plain.tools, plain.sampling)
