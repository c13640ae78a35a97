"""The unmodified OpenAI SDK and litellm against the server: what they get, and which tokens the engine gets."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

pytestmark = pytest.mark.anyio
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object"}},
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":  "Paris"}}\n</tool_call>'
BOUNDARY = "\n<|im_start|>{}\n{}<|im_end|>\n<|im_start|>assistant\n"


def sdk(room: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": room.base_url, "api_key": "any", "max_retries": 0, **options})


def sync_sdk(room: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=room.base_url, api_key="any", max_retries=0)


async def test_two_turns_with_a_tool_continue_the_stored_ids(room: Any, tokenizer: Any, in_thread: Any) -> None:
    async with room("<think>\nwhere\n</think>\n\nlooking\n" + CALL, "it rains") as here:
        client = sync_sdk(here)
        messages: list[Any] = [{"role": "user", "content": "weather?"}]
        first = await in_thread(client.chat.completions.create, model="toy", messages=messages, tools=TOOLS)
        said = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls"
        assert said.tool_calls[0].function.name == "weather"
        assert said.tool_calls[0].function.arguments == '{"city":  "Paris"}'
        assert said.content == "looking"
        assert said.reasoning_content == "where"
        messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "rain"}]
        second = await in_thread(client.chat.completions.create, model="toy", messages=messages, tools=TOOLS)
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("it rains", "stop")
        assert here.asked() == here.stored(0) + tokenizer.encode(BOUNDARY.format("tool", "rain"))
        assert second.usage.prompt_tokens == len(here.asked())
        assert second.usage.prompt_tokens_details.cached_tokens == 2
        assert here.session.tree.nodes[1].parent is here.session.tree.nodes[0]


async def test_ids_that_a_tokenizer_would_not_make_again_are_kept(room: Any, says: Any, tokenizer: Any) -> None:
    drifted = [*tokenizer.encode("h"), *tokenizer.encode("a"), *tokenizer.encode("ving")]
    assert drifted != tokenizer.encode("having")
    async with room(says(drifted), "yes") as here, sdk(here) as client:
        messages: list[Any] = [{"role": "user", "content": "say"}]
        first = await client.chat.completions.create(model="toy", messages=messages)
        assert first.choices[0].message.content == "having"
        messages += [first.choices[0].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="toy", messages=messages)
        kept = [*here.asked(0), *drifted, tokenizer.stop_token_ids[0]]
        assert here.asked(1)[: len(kept)] == kept


async def test_a_stream_is_put_together_to_the_same_message(room: Any, says: Any, tokenizer: Any) -> None:
    said = "<think>\nhm\n</think>\n\nhere \N{SLEEPING FACE}\n" + CALL
    async with room(said, said) as here, sdk(here) as client:
        messages: list[Any] = [{"role": "user", "content": "weather?"}]
        whole = (await client.chat.completions.create(model="toy", messages=messages, tools=TOOLS)).choices[0]
        options: Any = {"stream_options": {"include_usage": True}, "logprobs": True}
        async with client.chat.completions.stream(model="toy", messages=messages, tools=TOOLS, **options) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
        chunks = [event.chunk for event in events if event.type == "chunk"]
        texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(text or "" for text in texts)
        streamed = final.choices[0]
        assert (streamed.message.content, streamed.finish_reason) == (whole.message.content, "tool_calls")
        arguments = [one.message.tool_calls[0].function.arguments for one in (whole, streamed)]
        assert arguments[0] == arguments[1]
        thoughts = [getattr(chunk.choices[0].delta, "reasoning_content", "") for chunk in chunks if chunk.choices]
        assert "".join(thoughts) == "hm"
        assert final.usage.completion_tokens == len(here.session.tree.nodes[1].output_ids)
        assert len(streamed.logprobs.content) == final.usage.completion_tokens
        calls: Any = streamed.message.model_dump(exclude_unset=True)["tool_calls"]
        replayed = [
            *messages,
            streamed.message,
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"},
        ]
        here.engine.turns.append(says("done"))
        await client.chat.completions.create(model="toy", messages=replayed, tools=TOOLS)
        assert here.asked() == here.stored(1) + tokenizer.encode(BOUNDARY.format("tool", "rain"))


async def test_text_is_streamed_before_the_turn_is_over(room: Any, says: Any) -> None:
    turn = says("one two three four five six", holds_after=9)
    async with room(turn) as here, sdk(here) as client:
        stream = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "count"}], stream=True
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if text:
                assert not here.session.tree.nodes or turn.go.is_set()
                turn.go.set()
        assert text == "one two three four five six"


async def test_retries_and_equal_requests_are_siblings(room: Any) -> None:
    async with room("one", "two", "three") as here, sdk(here) as client:
        ask: Any = {"model": "toy", "messages": [{"role": "user", "content": "count"}]}
        await client.chat.completions.create(**ask)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(lambda: client.chat.completions.create(**ask))
        nodes = here.session.tree.nodes
        assert sorted(node.response.text for node in nodes) == ["one", "three", "two"]
        assert all(node.parent is None for node in nodes)


async def test_edited_history_begins_a_new_branch(room: Any) -> None:
    async with room("one", "two", "three") as here, sdk(here) as client:
        first: Any = {"role": "user", "content": "count"}
        await client.chat.completions.create(model="toy", messages=[first])
        for said in ("one", "not one"):
            history: Any = [first, {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
            await client.chat.completions.create(model="toy", messages=history)
        one, continued, branch = here.session.tree.nodes
        assert (continued.parent, branch.parent) == (one, None)


async def test_several_choices_are_siblings_with_seeds_of_their_own(room: Any) -> None:
    async with room("one", "two") as here, sdk(here) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "count"}], n=2, seed=7, temperature=0.5
        )
        assert [choice.index for choice in reply.choices] == [0, 1]
        assert {choice.message.content for choice in reply.choices} == {"one", "two"}
        assert [request.sampling.sampling_seed for request in here.engine.requests] == [7, 8]
        assert [request.sampling.temperature for request in here.engine.requests] == [0.5, 0.5]
        generated = sum(len(node.output_ids) for node in here.session.tree.nodes)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == generated


async def test_a_cut_turn_says_length_and_is_continued(room: Any, tokenizer: Any) -> None:
    async with room("one two three", "more") as here, sdk(here) as client:
        messages: list[Any] = [{"role": "user", "content": "count"}]
        reply = await client.chat.completions.create(model="toy", messages=messages, max_tokens=3)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 3
        messages += [reply.choices[0].message, {"role": "user", "content": "go on"}]
        await client.chat.completions.create(model="toy", messages=messages)
        assert here.asked() == here.stored(0) + tokenizer.encode("<|im_end|>" + BOUNDARY.format("user", "go on"))


async def test_stop_texts_end_a_turn_and_are_not_shown(room: Any) -> None:
    async with room("one STOP two") as here, sdk(here) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "count"}], stop=["STOP"]
        )
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("one ", "stop")
        assert here.engine.requests[0].sampling.stop == ("STOP",)


async def test_a_stream_never_shows_what_may_be_a_stop_text(room: Any) -> None:
    async with room("one STOP two", "one STAY") as here, sdk(here) as client:
        for expected in ("one ", "one STAY"):
            stream = await client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "count"}], stop="STOP", stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == expected


async def test_logprobs_are_those_of_all_generated_tokens(room: Any) -> None:
    async with room("one \N{SLEEPING FACE}") as here, sdk(here) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "count"}], logprobs=True
        )
        shown = reply.choices[0].logprobs
        assert shown is not None
        assert shown.content is not None
        node = here.session.tree.nodes[0]
        assert [token.logprob for token in shown.content] == pytest.approx(node.logprobs.tolist())
        assert shown.content[-1].token == "<|im_end|>"
        pieces = [token.bytes for token in shown.content if "\N{REPLACEMENT CHARACTER}" in token.token]
        assert pieces
        assert set(pieces) == {None}


async def test_calls_stay_text_where_the_client_wants_none(room: Any) -> None:
    async with room(CALL) as here, sdk(here) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "weather?"}], tools=TOOLS, tool_choice="none"
        )
        assert reply.choices[0].message.content == CALL
        assert reply.choices[0].message.tool_calls is None
        assert here.session.tree.nodes[0].response.text == CALL


async def test_litellm_continues_a_conversation_with_tools(
    room: Any, tokenizer: Any, in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the internet for prices otherwise
    litellm = pytest.importorskip("litellm")
    async with room("looking\n" + CALL, "it rains") as here:
        options: Any = {"model": "openai/toy", "api_base": here.base_url, "api_key": "any", "tools": TOOLS}
        messages: list[Any] = [{"role": "user", "content": "weather?"}]
        first = await in_thread(litellm.completion, messages=messages, **options)
        said = first.choices[0].message
        messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "rain"}]
        second = await litellm.acompletion(messages=messages, **options)
        assert second.choices[0].message.content == "it rains"
        assert here.asked() == here.stored(0) + tokenizer.encode(BOUNDARY.format("tool", "rain"))


async def test_litellm_streams(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    async with room("looking\n" + CALL) as here:
        messages = [{"role": "user", "content": "weather?"}]
        stream = await litellm.acompletion(
            model="openai/toy", api_base=here.base_url, api_key="any", tools=TOOLS, messages=messages, stream=True
        )
        whole = litellm.stream_chunk_builder([chunk async for chunk in stream], messages=messages)
        said = whole.choices[0].message
        stored = here.session.tree.nodes[0].response
        assert (said.content, whole.choices[0].finish_reason) == (stored.text, "tool_calls")
        assert [call.function.arguments for call in said.tool_calls] == [
            call["function"]["arguments"] for call in stored.tool_calls
        ]
