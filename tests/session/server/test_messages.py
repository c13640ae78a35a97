"""Unmodified Anthropic clients against the session server."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from miles_core.errors import EngineError

pytestmark = pytest.mark.anyio

TOOL: Any = {
    "name": "weather",
    "description": "tells it",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
NOT_FOUND = {"type": "not_found_error", "details": {"error_code": "session_not_found"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Bern"}}\n</tool_call>'
ASKS = f"<think>\nI should look.\n</think>\n\nLet me see.\n{CALL}"
RESULT = "<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"


def client_of(room: Any, **options: Any) -> anthropic.Anthropic:
    """It knows the server and the key of a session, and nothing else."""
    return anthropic.Anthropic(base_url=room.url, api_key=room.session_id, max_retries=0, **options)


def async_client_of(room: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=room.url, api_key=room.session_id, max_retries=0)


def answered(messages: list[Any], reply: anthropic.types.Message) -> list[Any]:
    """The conversation with the reply and the result of its call."""
    call = next(block for block in reply.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    return [*messages, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]


def continues(room: Any, tokenizer: Any) -> bool:
    """Whether the second prompt is the first, what was sampled, and the ids of what follows the stop token."""
    boundary = tokenizer.encode(RESULT)
    return bool(room.asked(1) == [*room.stored(0), *boundary[1:]])


async def test_two_turns_with_tools_continue_the_stored_ids(room: Any, tokenizer: Any, in_thread: Any) -> None:
    async with room(ASKS, "It is sunny.") as served:
        asked: Any = {"model": "m", "max_tokens": 200, "tools": [TOOL], "system": "Be brief."}
        messages: list[Any] = [{"role": "user", "content": "Weather?"}]
        with client_of(served) as client:
            first = await in_thread(client.messages.create, messages=messages, **asked)
            assert first.stop_reason == "tool_use"
            thought, said, call = first.content
            assert (thought.thinking, said.text.strip()) == ("I should look.", "Let me see.")
            assert (call.name, call.input) == ("weather", {"city": "Bern"})
            second = await in_thread(client.messages.create, messages=answered(messages, first), **asked)
        assert (second.content[0].text, second.stop_reason) == ("It is sunny.", "end_turn")
        assert continues(served, tokenizer)
        assert second.usage.input_tokens + second.usage.cache_read_input_tokens == len(served.asked(1))
        assert second.usage.output_tokens == len(served.engine.requests) + len(tokenizer.encode("It is sunny.")) - 1


async def test_a_stream_is_put_together_to_what_is_continued(room: Any, tokenizer: Any) -> None:
    async with room(ASKS, "It is sünny 🌞.") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "max_tokens": 200, "tools": [TOOL]}
        messages: list[Any] = [{"role": "user", "content": "Weather?"}]
        async with client.messages.stream(messages=messages, **asked) as stream:
            kinds = {event.type async for event in stream}
            first = await stream.get_final_message()
        assert {"thinking", "text", "input_json", "message_stop"} <= kinds
        assert first.stop_reason == "tool_use"
        async with client.messages.stream(messages=answered(messages, first), **asked) as stream:
            pieces = [piece async for piece in stream.text_stream]
        assert "".join(pieces) == "It is sünny 🌞."
        assert len(pieces) > 1
        assert continues(served, tokenizer)


async def test_a_synchronous_stream(room: Any, says: Any, in_thread: Any) -> None:
    async with room(says("one two three", cut=True)) as served:

        def read() -> tuple[str, anthropic.types.Message]:
            with client_of(served).messages.stream(
                model="m", max_tokens=100, messages=[{"role": "user", "content": "Count."}]
            ) as stream:
                return "".join(stream.text_stream), stream.get_final_message()

        text, message = await in_thread(read)
        assert (text, message.stop_reason) == ("one two three", "max_tokens")
        assert message.usage.output_tokens == len(served.session.tree.nodes[0].output_ids)


async def test_a_stop_sequence_is_named_and_the_turn_can_be_continued(room: Any) -> None:
    async with room("red END blue", "more") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "max_tokens": 50, "stop_sequences": ["END"]}
        messages: list[Any] = [{"role": "user", "content": "Colours?"}]
        first = await client.messages.create(messages=messages, **asked)
        assert (first.stop_reason, first.stop_sequence) == ("stop_sequence", "END")
        assert first.content[0].type == "text"
        assert first.content[0].text == "red "
        messages += [first.to_param(), {"role": "user", "content": "Go on."}]
        await client.messages.create(messages=messages, **asked)
        assert served.asked(1)[: len(served.stored(0))] == served.stored(0)


async def test_a_stop_sequence_ends_a_stream(room: Any) -> None:
    async with room("red END blue") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "max_tokens": 50, "stop_sequences": ["END"]}
        async with client.messages.stream(messages=[{"role": "user", "content": "Colours?"}], **asked) as stream:
            assert "".join([piece async for piece in stream.text_stream]) == "red "
            assert (await stream.get_final_message()).stop_sequence == "END"


async def test_the_sdk_runs_tools_by_itself(room: Any, tokenizer: Any) -> None:
    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """tells it"""
        return "sunny" if city == "Bern" else "unknown"

    async with room(ASKS, "It is sunny.") as served, async_client_of(served) as client:
        messages: Any = [{"role": "user", "content": "Weather?"}]
        runner = client.beta.messages.tool_runner(model="m", max_tokens=200, tools=[weather], messages=messages)
        last = await runner.until_done()
        assert last.content[0].type == "text"
        assert last.content[0].text == "It is sunny."
        assert continues(served, tokenizer)


async def test_tokens_are_counted_and_nothing_is_generated(room: Any) -> None:
    async with room("Hello.") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "system": "Be brief."}
        counted = await client.messages.count_tokens(**asked)
        assert not served.engine.requests
        await client.messages.create(max_tokens=20, **asked)
        assert counted.input_tokens == len(served.asked(0))


async def test_errors_are_those_of_the_sdk(room: Any, says: Any) -> None:
    failing = says("x", fails_after=0, error=EngineError("the engine died"))
    async with room(failing, context_length=60) as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}
        with pytest.raises(anthropic.BadRequestError, match="top_k"):
            await client.messages.create(**asked, extra_body={"top_k": 4})
        with pytest.raises(anthropic.InternalServerError, match="the engine died") as failed:
            await client.messages.create(**asked)
        assert failed.value.status_code == 502
        with pytest.raises(anthropic.BadRequestError, match="context"):
            await client.messages.create(**{**asked, "messages": [{"role": "user", "content": "many words " * 30}]})
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(**asked)
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.with_options(base_url=f"{served.url}/sessions/none").messages.create(**asked)
        assert unknown.value.body == {"type": "error", "error": {**NOT_FOUND, "message": _text(unknown)}}
        assert not served.session.tree.nodes


def _text(raised: Any) -> str:
    return str(raised.value.body["error"]["message"])


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error(room: Any, says: Any) -> None:
    failing = says("a long answer that does not end", fails_after=6, error=EngineError("the engine died"))
    async with room(failing, "A short one.") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi."}]}
        with pytest.raises(anthropic.APIStatusError, match="the engine died"):
            async with client.messages.stream(**asked) as stream:
                await stream.until_done()
        assert not served.session.tree.nodes
        again = await client.messages.create(**asked)
        assert again.content[0].type == "text"
        assert again.content[0].text == "A short one."


async def test_litellm_speaks_it(room: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    async with room(ASKS, "It is sunny.") as served:
        function = {"name": "weather", "description": "tells it", "parameters": TOOL["input_schema"]}
        asked = {
            "model": "anthropic/policy",
            "api_base": served.url,
            "api_key": served.session_id,
            "tools": [{"type": "function", "function": function}],
            "max_tokens": 200,
        }
        messages: list[Any] = [{"role": "user", "content": "Weather?"}]
        first = (await litellm.acompletion(messages=messages, **asked)).choices[0].message
        assert first.tool_calls[0].function.name == "weather"
        messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}]
        second = await litellm.acompletion(messages=messages, **asked)
        assert second.choices[0].message.content == "It is sunny."
        assert continues(served, tokenizer)
