"""Unmodified OpenAI clients against the session server, by the responses API."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from miles_core.errors import EngineError

pytestmark = pytest.mark.anyio

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "tells it",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Bern"}}\n</tool_call>'
ASKS = f"<think>\nI should look.\n</think>\n\nLet me see.\n{CALL}"
RESULT = "<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"


def client_of(room: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=room.base_url, api_key="any", max_retries=0)


def async_client_of(room: Any) -> openai.AsyncOpenAI:
    """It knows the server and the key of a session, and nothing else."""
    return openai.AsyncOpenAI(base_url=f"{room.url}/v1", api_key=room.session_id, max_retries=0)


def result_of(response: Any) -> dict[str, Any]:
    """The result of the call in a response."""
    call = next(item for item in response.output if item.type == "function_call")
    return {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}


def continues(room: Any, tokenizer: Any) -> bool:
    """Whether the second prompt is the first, what was sampled, and the ids of what follows the stop token."""
    boundary = tokenizer.encode(RESULT)
    return bool(room.asked(1) == [*room.stored(0), *boundary[1:]])


async def test_two_turns_with_tools_continue_the_stored_ids(room: Any, tokenizer: Any, in_thread: Any) -> None:
    async with room(ASKS, "It is sunny.") as served:
        asked: Any = {"model": "m", "tools": [TOOL], "instructions": "Be brief."}
        items: list[Any] = [{"role": "user", "content": "Weather?"}]
        with client_of(served) as client:
            first = await in_thread(client.responses.create, input=items, **asked)
            thought, said, call = first.output
            assert thought.content[0].text == "I should look."
            assert said.content[0].text.strip() == "Let me see."
            assert (call.name, call.arguments) == ("weather", '{"city":"Bern"}')
            items += [*first.output, result_of(first)]
            second = await in_thread(client.responses.create, input=items, **asked)
        assert (second.output_text, second.status, second.instructions) == ("It is sunny.", "completed", "Be brief.")
        assert continues(served, tokenizer)
        assert second.usage.input_tokens == len(served.asked(1))
        assert second.usage.input_tokens_details.cached_tokens == 2


async def test_a_response_that_is_named_is_continued(room: Any, tokenizer: Any) -> None:
    async with room(ASKS, "It is sunny.", "Yes.") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "tools": [TOOL], "instructions": "Be brief."}
        first = await client.responses.create(input="Weather?", **asked)
        second: Any = await client.responses.create(
            input=[result_of(first)],  # type: ignore[list-item]
            previous_response_id=first.id,
            **asked,
        )
        assert second.previous_response_id == first.id
        assert continues(served, tokenizer)
        await client.responses.create(input="Sure?", previous_response_id=second.id, **asked)
        assert served.asked(2)[: len(served.stored(1))] == served.stored(1)


async def test_instructions_belong_to_one_request(room: Any, tokenizer: Any) -> None:
    async with room("Hello.", "Hallo.") as served, async_client_of(served) as client:
        first = await client.responses.create(model="m", input="Hi.", instructions="English.")
        await client.responses.create(model="m", input="Again.", instructions="German.", previous_response_id=first.id)
        prompt = tokenizer.decode(served.asked(1))
        assert "German." in prompt
        assert "English." not in prompt
        assert "Hello." in prompt


async def test_a_response_that_is_not_stored_cannot_be_named(room: Any) -> None:
    async with room("Hello.") as served, async_client_of(served) as client:
        first = await client.responses.create(model="m", input="Hi.", store=False)
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model="m", input="Again.", previous_response_id=first.id)
        assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_a_stream_is_put_together_to_what_is_continued(room: Any, tokenizer: Any) -> None:
    async with room(ASKS, "It is sünny 🌞.") as served, async_client_of(served) as client:
        asked: Any = {"model": "m", "tools": [TOOL]}
        items: list[Any] = [{"role": "user", "content": "Weather?"}]
        async with client.responses.stream(input=items, **asked) as stream:
            kinds = [event.type async for event in stream]
            first = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert {"response.reasoning_text.delta", "response.function_call_arguments.done"} <= set(kinds)
        items += [*first.output, result_of(first)]
        text = ""
        async for event in await client.responses.create(input=items, stream=True, **asked):
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "It is sünny 🌞."
        assert continues(served, tokenizer)


async def test_a_synchronous_stream(room: Any, in_thread: Any) -> None:
    async with room("one two three") as served:

        def read() -> tuple[int, str]:
            with client_of(served) as client, client.responses.stream(model="m", input="Count.") as stream:
                deltas = [event for event in stream if event.type == "response.output_text.delta"]
                return len(deltas), stream.get_final_response().output_text

        count, text = await in_thread(read)
        assert count > 1
        assert text == "one two three"


async def test_a_turn_that_was_cut_is_incomplete(room: Any) -> None:
    async with room("one two three", "one two three") as served, async_client_of(served) as client:
        response = await client.responses.create(model="m", input="Count.", max_output_tokens=4)
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        stream: Any = await client.responses.create(model="m", input="Count.", max_output_tokens=4, stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.output[0].status == "incomplete"


async def test_errors_are_those_of_the_sdk(room: Any, says: Any) -> None:
    failing = says("x", fails_after=0, error=EngineError("the engine died"))
    async with room(failing, context_length=60) as served, async_client_of(served) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="Hi.", tools=[{"type": "web_search"}])
        assert refused.value.param == "tools[0].type"
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            await client.responses.create(model="m", input="Hi.")
        with pytest.raises(openai.BadRequestError) as full:
            await client.responses.create(model="m", input="many words " * 30)
        assert full.value.code == "context_length_exceeded"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").responses.create(model="m", input="Hi.")
        assert not served.session.tree.nodes


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error(room: Any, says: Any) -> None:
    failing = says("a long answer that does not end", fails_after=6, error=EngineError("the engine died"))
    async with room(failing, "A short one.") as served, async_client_of(served) as client:
        stream: Any = await client.responses.create(model="m", input="Hi.", stream=True)
        seen: list[Any] = []

        async def read() -> None:
            async for event in stream:
                seen.append(event)  # noqa: PERF401 - a comprehension that fails would leave nothing

        with pytest.raises(openai.APIError, match="the engine died"):
            await read()
        assert seen[-1].type == "response.failed"
        assert not served.session.tree.nodes
        again = await client.responses.create(model="m", input="Hi.")
        assert again.output_text == "A short one."
