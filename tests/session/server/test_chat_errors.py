"""What goes wrong with chat requests: the SDK raises the right error, nothing is stored, and the session goes on."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from miles_core.errors import EngineError, EngineRequestError
from miles_core.session.rendering import own_renderer

pytestmark = pytest.mark.anyio
ASK: Any = {"model": "toy", "messages": [{"role": "user", "content": "count"}]}
USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "f"}}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{**USER, "weight": 1}]}, "messages[0].weight"),
    ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{**CALLED, "tool_calls": [{**CALL, "id": None}]}]}, "messages[0].tool_calls[0].id"),
    ({"messages": [{**CALLED, "tool_calls": [{**CALL, "type": "custom"}]}]}, "messages[0].tool_calls[0].type"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [USER, CALLED, {"role": "tool", "content": "x", "tool_call_id": "b"}]}, "messages[2].tool_call_id"),
    ({"messages": [USER, {"role": "critic", "content": "x"}]}, "messages"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": "\ud800"}, "stop"),
    ({"seed": 1 << 40}, "seed"),
    ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_all": True}}, "stream_options.include_all"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"top_p": 0.9}, "top_p"),
    ({"top_k": 5}, "top_k"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ({"input_ids": [1]}, "input_ids"),
    ({"return_hidden_states": True}, "return_hidden_states"),
    ({"functions": []}, "functions"),
    ({"web_search_options": {}}, "web_search_options"),
]


def sdk(room: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": room.base_url, "api_key": "any", "max_retries": 0, **options})


async def note(stream: Any, texts: list[str]) -> None:
    async for chunk in stream:
        texts += [chunk.choices[0].delta.content or ""]


@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=[f"{index}-{param}" for index, (_, param) in enumerate(WRONG)])
async def test_a_wrong_request_is_a_400_that_names_the_field(room: Any, wrong: dict[str, Any], param: str) -> None:
    async with room("fine") as here, aiohttp.ClientSession() as http:
        url = f"{here.base_url}/chat/completions"
        async with http.post(url, json={**ASK, **wrong}) as reply:
            error = (await reply.json())["error"]
        assert reply.status == 400, error
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
        assert not here.engine.requests
        async with http.post(url, json=ASK) as reply:
            assert reply.status == 200


async def test_what_changes_nothing_is_ignored(room: Any) -> None:
    async with room("fine") as here, sdk(here) as client:
        message = {**USER, "name": None, "refusal": None, "annotations": [], "audio": None}
        reply = await client.chat.completions.create(
            model="other",
            messages=[message],  # type: ignore[list-item]
            user="me",
            metadata={"a": "b"},
            store=True,
            parallel_tool_calls=True,
            reasoning_effort="low",
            top_p=1,
            presence_penalty=0,
            logit_bias={},
            response_format={"type": "text"},
            tool_choice="auto",
        )
        assert (reply.choices[0].message.content, reply.model) == ("fine", "other")


async def test_the_templates_own_words_are_told(room: Any) -> None:
    async with room() as here, sdk(here) as client:
        with pytest.raises(openai.BadRequestError, match="critics are not heard here"):
            await client.chat.completions.create(
                model="toy",
                messages=[USER, {"role": "critic", "content": "x"}],  # type: ignore[list-item, misc]
            )


@pytest.mark.parametrize("body", ["", "[1]", "{", '{"messages": NaN}', "\xff", "[" * 100_000])
async def test_a_body_that_is_no_json_object_is_a_400(room: Any, body: str) -> None:
    async with room() as here, aiohttp.ClientSession() as http:
        data = body.encode("latin-1")
        async with http.post(f"{here.base_url}/chat/completions", data=data) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"tools": [{**TOOL, "extra": json.loads("[" * 700 + "]" * 700)}]},
        {"model": 5},
        {"temperature": 10**400},
    ],
    ids=["surrogate", "deep", "model", "huge"],
)
async def test_what_is_json_but_no_request_is_a_400(room: Any, wrong: Any) -> None:
    async with room() as here, aiohttp.ClientSession() as http:
        async with http.post(f"{here.base_url}/chat/completions", json={**ASK, **wrong}) as reply:
            assert (reply.status, (await reply.json())["error"]["type"]) == (400, "invalid_request_error")
        assert not here.engine.requests


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_a_number_that_no_json_can_hold_is_a_400_before_anything_is_generated(room: Any, path: str) -> None:
    asked = '"messages": [{"role": "user", "content": "hi"}], "input": "hi", "max_tokens": 5, "metadata": {"a": 1e999}'
    async with room() as here, aiohttp.ClientSession() as http:
        async with http.post(f"{here.base_url}/{path}", data=f"{{{asked}}}") as reply:
            assert (reply.status, "1e999" in (await reply.json())["error"]["message"]) == (400, True)
        assert not here.engine.requests


async def test_a_name_that_is_no_unicode_leaves_the_record_readable(room: Any) -> None:
    named = {"messages": [{**USER, "name": "\ud800"}]}  # templates need not show it
    async with room("fine") as here, aiohttp.ClientSession() as http:
        async with http.post(f"{here.base_url}/chat/completions", json={**ASK, **named}) as reply:
            assert reply.status == 200
        for method, path in (("GET", ""), ("POST", "/samples")):
            async with http.request(method, f"{here.url}/sessions/{here.session_id}{path}") as reply:
                assert reply.status == 200
                assert await reply.json()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_a_413(room: Any, chunked: bool) -> None:
    async with room("fine", max_body_bytes=100_000) as here, sdk(here) as client:
        long = {**ASK, "messages": [{"role": "user", "content": "x" * 150_000}]}

        async def parts() -> Any:
            for part in (json.dumps(long)[place : place + 9_000] for place in range(0, 150_200, 9_000)):
                yield part.encode()

        async with aiohttp.ClientSession() as http:
            data: Any = parts() if chunked else json.dumps(long)
            async with http.post(f"{here.base_url}/chat/completions", data=data) as reply:
                assert reply.status == 413
                assert (await reply.json())["error"]["code"] == "body_too_large"
        with pytest.raises(openai.APIStatusError, match="more than 100000 bytes"):
            await client.chat.completions.create(**long)
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "fine"


async def test_a_body_many_times_too_long_is_a_413_too_and_no_broken_connection(room: Any) -> None:
    async with room("fine", max_body_bytes=100_000) as here, sdk(here) as client:
        long = {**ASK, "messages": [{"role": "user", "content": "x" * (24 << 20)}]}
        with pytest.raises(openai.APIStatusError, match="more than 100000 bytes") as caught:
            await client.chat.completions.create(**long)
        assert caught.value.status_code == 413
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "fine"


class _Broken:
    def __init__(self, tokenizer: Any) -> None: ...

    def prompt(self, messages: Any, tools: Any) -> list[int]:
        return [1 // 0]

    def boundary(self, turn: Any, appended: Any) -> list[int]:
        return [1 // 0]


async def test_a_renderer_that_is_broken_is_a_500_and_not_the_clients_fault(
    room: Any, tokenizer: Any, caplog: Any
) -> None:
    async with room("never") as here, sdk(here) as client:
        here.session.renderer = own_renderer(_Broken, "test:Broken", tokenizer)
        with pytest.raises(openai.InternalServerError, match="test:Broken.prompt.* raised ZeroDivisionError"):
            await client.chat.completions.create(**ASK)
    assert "test:Broken" in caplog.text


async def test_an_engine_that_failed_is_asked_again_and_nothing_is_stored_meanwhile(room: Any, says: Any) -> None:
    down = says("lost", fails_after=0, error=EngineError("no answer"))
    async with room(down, down, "fine") as here:
        async with sdk(here) as client:
            with pytest.raises(openai.InternalServerError, match="no answer") as caught:
                await client.chat.completions.create(**ASK)
        assert caught.value.status_code == 502
        assert not here.session.tree.nodes
        async with sdk(here, max_retries=1) as client:
            reply = await client.chat.completions.create(**ASK)
        assert reply.choices[0].message.content == "fine"
        assert len(here.session.tree.nodes) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_the_engine_refuses_is_a_400(room: Any, says: Any, stream: bool) -> None:
    refused = says("lost", fails_after=0, error=EngineRequestError("the prompt has a wrong id"))
    async with room(refused) as here, sdk(here) as client:
        with pytest.raises(openai.BadRequestError, match="wrong id"):
            await client.chat.completions.create(**ASK, stream=stream)


async def test_an_aborted_turn_is_not_stored(room: Any, says: Any) -> None:
    async with room(says("half", finish="abort")) as here, sdk(here) as client:
        with pytest.raises(openai.InternalServerError, match="aborted"):
            await client.chat.completions.create(**ASK)
        assert not here.session.tree.nodes


async def test_a_spent_context_is_what_the_sdk_knows_as_too_long(room: Any) -> None:
    async with room(context_length=10) as here, sdk(here) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ASK)
        assert caught.value.code == "context_length_exceeded"


async def test_tokens_are_clipped_to_what_the_context_leaves(room: Any) -> None:
    async with room("one two three four five") as here, sdk(here) as client:
        await client.chat.completions.create(**ASK, max_tokens=100_000)
        asked = here.engine.requests[0]
        assert len(asked.input_ids) + asked.sampling.max_new_tokens == 2000


async def test_an_engine_error_midway_ends_the_stream_with_an_error(room: Any, says: Any) -> None:
    broken = says("one two three four five", fails_after=9, error=EngineError("the engine died"))
    async with room(broken, "fine") as here, sdk(here) as client:
        stream = await client.chat.completions.create(**ASK, stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="the engine died"):
            await note(stream, texts)
        assert "".join(texts)
        assert "one two three four five".startswith("".join(texts))
        assert not here.session.tree.nodes
        reply = await client.chat.completions.create(**ASK)
        assert reply.choices[0].message.content == "fine"


async def test_a_stream_with_an_error_has_no_done(room: Any, says: Any) -> None:
    broken = says("one two three four five", fails_after=9, error=EngineError("the engine died"))
    async with room(broken) as here, aiohttp.ClientSession() as http:
        async with http.post(f"{here.base_url}/chat/completions", json={**ASK, "stream": True}) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = [line for line in (await reply.text()).splitlines() if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "server_error"
        assert "data: [DONE]" not in events


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_engines_request(room: Any, says: Any, stream: bool) -> None:
    held = says("one two three four five", holds_after=9)
    async with room(held, "fine") as here:
        async with aiohttp.ClientSession() as http:
            url = f"{here.base_url}/chat/completions"

            async def leave() -> None:
                await here.engine.until_running(1)
                tasks.cancel_scope.cancel()

            async with anyio.create_task_group() as tasks:
                if stream:
                    reply = await http.post(url, json={**ASK, "stream": True})
                    await reply.content.readline()
                    reply.close()
                else:
                    tasks.start_soon(leave)
                    await http.post(url, json=ASK)
        await here.engine.until_running(0)
        assert len(here.engine.requests) == 1
        assert not here.session.tree.nodes
        async with sdk(here) as client:
            assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "fine"


async def test_one_failed_choice_fails_the_request_and_ends_the_others(room: Any, says: Any) -> None:
    failing = says("one two three", fails_after=3, error=EngineError("the engine died"))
    async with room("whole", failing, says("never", holds_after=0)) as here, sdk(here) as client:
        with pytest.raises(openai.InternalServerError, match="the engine died"):
            await client.chat.completions.create(**ASK, n=3)
        await here.engine.until_running(0)
        assert [node.response.text for node in here.session.tree.nodes] in ([], ["whole"])


async def test_a_fault_of_the_server_is_a_500_and_it_lives(
    room: Any, says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with room(says("x", fails_after=0, error=KeyError("a bug")), "fine") as here, sdk(here) as client:
        with pytest.raises(openai.InternalServerError, match="a bug") as caught:
            await client.chat.completions.create(**ASK)
        assert caught.value.status_code == 500
        assert "Traceback" in caplog.text
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "fine"


async def test_text_that_looks_like_a_marker_stays_text(room: Any, tokenizer: Any) -> None:
    async with room("fine") as here, sdk(here) as client:
        await client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "<|im_end|>"}])
        assert here.asked().count(tokenizer.stop_token_ids[0]) == 1


async def test_answers_can_be_held_to_a_schema_and_are_not_trained(room: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with room("{}", "{}", "cold") as here, sdk(here) as client:
        await client.chat.completions.create(
            **ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        )
        await client.chat.completions.create(**ASK, response_format={"type": "json_object"})
        await client.chat.completions.create(**ASK, temperature=0)
        asked = [json.loads(request.sampling.json_schema or "null") for request in here.engine.requests]
        assert asked == [schema, {"type": "object"}, None]
        assert [node.sampling.trainable for node in here.session.tree.nodes] == [False, False, False]


async def test_a_session_that_is_full_says_so(room: Any) -> None:
    async with room("one", max_tokens=30) as here, sdk(here) as client:
        await client.chat.completions.create(**ASK)
        with pytest.raises(openai.BadRequestError, match="the session keeps") as caught:
            await client.chat.completions.create(**ASK)
        assert caught.value.code == "context_length_exceeded"
