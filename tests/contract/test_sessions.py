"""The session server in front of both engines, reached by the SDKs as they are: tokens, routing, streams, refusals."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import numpy as np
import openai
import pybase64
import pytest
from anyio import fail_after
from openai.lib.streaming.chat import ChatCompletionStreamState

from miles_core.engine.client import HttpEngineClient
from miles_core.engine.prompt import KEPT_BACK
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.registry import SessionRegistry
from miles_core.session.served import ClientSession
from miles_core.session.server.app import create_app
from miles_core.session.server.opening import OpenRequest
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import GenerateRequest, Generation

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("model", ["moe"], indirect=True)]
CONTEXT = 2048
TEMPLATE = """\
{%- for tool in tools or [] %}{{ 'tool ' + tool.function.name + ' ' }}{% endfor %}
{%- for message in messages %}
{{- message.role + ' ' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}
{{- eos_token + ' ' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"""
PARAMETERS: Any = {"type": "object", "properties": {"word": {"type": "string"}}}
FUNCTION: Any = {"name": "look", "description": "looks a word up", "parameters": PARAMETERS}
HELLO: Any = [{"role": "user", "content": "hello"}]


def all_is_a_call(text: str) -> tuple[str, list[dict[str, str]]]:
    """What weights without training say spells no call, so here anything does."""
    return "", [{"name": "look", "arguments": json.dumps({"word": text})}]


class Client(HttpEngineClient):
    """Keeps what was asked."""

    requests: list[GenerateRequest]

    async def generate(self, request: GenerateRequest, **options: Any) -> Generation:
        self.requests.append(request)
        return await super().generate(request, **options)


@dataclass
class Room:
    """A session server in front of an engine, with one session that a client opened."""

    served: Any
    tokenizer: ChatTokenizer
    engine: Client
    url: str
    key: str

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key=self.key, max_retries=0)

    async def turns(self) -> list[Any]:
        """The record of the session."""
        async with self.served.http.get(f"{self.url}/sessions/{self.key}") as reply:
            assert reply.status == 200
            return list((await reply.json())["turns"])

    async def samples(self) -> Any:
        async with self.served.http.post(f"{self.url}/sessions/{self.key}/samples", json={}) as reply:
            assert reply.status == 200
            return await reply.json()

    def asked(self, index: int) -> list[int]:
        return [int(token) for token in self.engine.requests[index].input_ids]


@pytest.fixture
async def room(served: Any, serving: Callable[..., Any]) -> AsyncIterator[Room]:
    tokenizer = ChatTokenizer.load(served.model_path)
    tokenizer.tokenizer.chat_template = TEMPLATE
    options = {"vocab_size": tokenizer.vocab_size, "context_length": CONTEXT, "routing": served.routing}
    client = Client(served.url, served.http, **options)
    client.requests = []

    def open_session(wanted: OpenRequest) -> ClientSession:
        names = dict.fromkeys(("task_id", "group_id", "trajectory_id"), uuid.uuid4().hex)
        session = TokenSession(tokenizer, client, served.routing, parser=TurnParser(all_is_a_call), **names)
        limits = {"context_length": CONTEXT, "max_tokens": 1 << 20, "kept_back": KEPT_BACK}
        return ClientSession(session, fixed=wanted.sampling, **limits)

    registry = SessionRegistry(ttl=3600.0, max_sessions=4)
    app = create_app(registry, open_session=open_session, model="toy", max_body_bytes=1 << 20)
    async with serving(app) as server:
        async with served.http.post(f"{server.url}/sessions", json={}) as reply:
            key = (await reply.json())["api_key"]
        yield Room(served, tokenizer, client, server.url, key)


async def assert_continued(room: Room, appended: str, temperature: float = 1.0) -> None:
    """The second prompt is the first, what was sampled and a boundary; all of it is recorded as the engine said it."""
    first, second = await room.turns()
    assert (first["parent"], second["parent"]) == (None, 0)
    assert room.asked(0) == first["context_ids"]
    assert room.asked(1) == [*room.asked(0), *first["output_ids"], *second["context_ids"]]
    close = " " if first["stop"] is not None else "<eos> "
    assert room.tokenizer.decode(second["context_ids"]) == f"{close}{appended}<eos> assistant "
    for place, turn in enumerate((first, second)):
        ids = turn["output_ids"]
        expected = room.served.reference.logprobs(room.asked(place), ids, temperature)
        assert turn["logprobs"] == pytest.approx(expected.tolist(), abs=1e-3)
        assert turn["versions"] == [[0, 0, len(ids)]]


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_calls_a_tool_and_goes_on(room: Room, stream: bool) -> None:
    ask: Any = {"model": "m", "tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 20}
    messages = list(HELLO)
    async with room.openai() as sdk:
        for _ in range(2):
            if stream:
                state = ChatCompletionStreamState()  # its own stream() raises where a turn with tools was cut
                async for chunk in await sdk.chat.completions.create(messages=messages, stream=True, **ask):
                    state.handle_chunk(chunk)
                reply = state.current_completion_snapshot.choices[0].message
            else:
                reply = (await sdk.chat.completions.create(messages=messages, **ask)).choices[0].message
            (call,) = reply.tool_calls or []
            messages += [reply.model_dump(exclude_none=True), result(tool_call_id=call.id)]
    await assert_continued(room, "tool rain")
    assert room.tokenizer.decode(room.asked(0)).startswith("tool look user hello")


def result(**names: str) -> dict[str, str]:
    return {"role": "tool", "content": "rain", **names}


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses_calls_a_tool_and_goes_on(room: Room, stream: bool) -> None:
    ask: Any = {"model": "m", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 20}
    items = list(HELLO)
    async with room.openai() as sdk:
        for _ in range(2):
            reply = await sdk.responses.create(input=items, stream=stream, **ask)
            if stream:
                ended = [event.response async for event in reply if event.type.endswith((".completed", ".incomplete"))]
                reply = ended[-1]
            call = next(item for item in reply.output if item.type == "function_call")
            items += [*reply.output, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    await assert_continued(room, "tool rain")


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages_uses_a_tool_and_goes_on(room: Room, stream: bool) -> None:
    tool: Any = {"name": "look", "input_schema": PARAMETERS}
    ask: Any = {"model": "m", "tools": [tool], "max_tokens": 20, "extra_body": {"temperature": 0.7}}
    messages = list(HELLO)
    async with room.anthropic() as sdk:
        for _ in range(2):
            if stream:
                async with sdk.messages.stream(messages=messages, **ask) as events:
                    reply = await events.get_final_message()
            else:
                reply = await sdk.messages.create(messages=messages, **ask)
            use = next(block for block in reply.content if block.type == "tool_use")
            answer = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [answer]}]
    await assert_continued(room, "tool rain", 0.7)


async def test_a_greedy_turn_says_the_same_by_every_way(room: Room) -> None:
    async with room.openai() as sdk, room.anthropic() as other:
        ask: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 40}
        whole = (await sdk.chat.completions.create(**ask)).choices[0].message.content
        chunks = [chunk async for chunk in await sdk.chat.completions.create(stream=True, **ask)]
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        limits: Any = {"temperature": 0, "max_output_tokens": 40, "stream": True}
        events = [event async for event in await sdk.responses.create(model="m", input=HELLO, **limits)]
        answer = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        greedy: Any = {"max_tokens": 40, "extra_body": {"temperature": 0}}
        async with other.messages.stream(model="m", messages=HELLO, **greedy) as stream:
            spelled = "".join([text async for text in stream.text_stream])
    assert len([text for text in texts if text]) > 2, "it came while it was generated"
    assert {"".join(texts), answer, spelled} == {whole}
    turns = await room.turns()
    assert [turn["parent"] for turn in turns] == [None] * 4
    assert {tuple(turn["output_ids"]) for turn in turns} == {tuple(turns[0]["output_ids"])}
    trained = await room.samples()
    assert [sum(sample["loss_mask"]) for sample in trained["samples"]] == [0]
    assert trained["not_trained"][-1] == {"turn": 3, "reason": "it was sampled greedily"}


async def test_a_stop_text_and_a_limit_end_turns_that_go_on(room: Room) -> None:
    async with room.openai() as sdk, room.anthropic() as other:
        ask: Any = {"model": "m", "messages": HELLO, "temperature": 0}
        whole = (await sdk.chat.completions.create(max_tokens=12, **ask)).choices[0]
        text = whole.message.content or ""
        assert (whole.finish_reason, len((await room.turns())[0]["output_ids"])) == ("length", 12)
        pairs = ((at, text[at : at + 2]) for at in range(2, 10))  # of letters: a special token is written with others
        stop = next(pair for at, pair in pairs if text.index(pair) == at and pair.isalnum())
        shown = text[: text.index(stop)]
        stopped = (await sdk.chat.completions.create(max_tokens=40, stop=[stop, "-"], **ask)).choices[0]
        assert (stopped.message.content, stopped.finish_reason) == (shown, "stop")
        limits: Any = {"max_tokens": 40, "stop_sequences": ["-", stop], "extra_body": {"temperature": 0}}
        reply = await other.messages.create(model="m", messages=HELLO, **limits)
        assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == (shown, "stop_sequence", stop)
        said: Any = [*HELLO, stopped.message, {"role": "user", "content": "go on"}]
        await sdk.chat.completions.create(model="m", messages=said, max_tokens=4)
    turns = await room.turns()
    assert turns[3]["parent"] in (1, 2), "both said the same"
    kept = [*turns[0]["context_ids"], *turns[1]["output_ids"]]
    assert room.asked(3) == [*kept, *turns[3]["context_ids"]]
    assert room.tokenizer.decode(kept).endswith(shown + stop)


async def test_a_client_that_leaves_aborts_the_engine_s_request(room: Room) -> None:
    async with room.openai() as sdk:
        ask: Any = {"model": "m", "messages": HELLO, "temperature": 0, "max_tokens": 1900, "stream": True}
        stream = await sdk.chat.completions.create(**ask)
        async for _ in stream:
            break
        await stream.close()
        assert await room.served.rid_comes_free(room.engine.requests[0].rid)
        assert await room.turns() == []
        with fail_after(30):
            await sdk.chat.completions.create(model="m", messages=HELLO, max_tokens=4)
    assert len(await room.turns()) == 1


async def test_a_schema_holds_the_answer_or_is_a_400(room: Room) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
    ask: Any = {"model": "m", "messages": HELLO, "max_tokens": 4, "response_format": wanted}
    async with room.openai() as sdk:
        if room.served.engine == "embedded":
            with pytest.raises(openai.BadRequestError, match="no constrained decoding"):
                await sdk.chat.completions.create(**ask)
            assert await room.turns() == []
            return
        text = (await sdk.chat.completions.create(**ask)).choices[0].message.content or ""
    assert text.removesuffix("<eos>").isdecimal()
    (entry,) = (await room.samples())["not_trained"]
    assert entry["reason"] == "its output was held to a schema"


async def test_routes_of_two_turns_are_those_of_the_whole_sequence(room: Room) -> None:
    """The second turn asks for what is new; a prompt of all tokens, computed at once, has the same routes."""
    async with room.openai() as sdk:
        messages = list(HELLO)
        for _ in range(2):
            reply = await sdk.chat.completions.create(model="m", messages=messages, max_tokens=24)
            messages += [reply.choices[0].message, {"role": "user", "content": "go on"}]
    first, second = room.engine.requests
    turns = await room.turns()
    known = len(room.asked(0)) + len(turns[0]["output_ids"]) - 1
    assert (first.routed_experts_start_len, second.routed_experts_start_len) == (0, known)
    (sample,) = (await room.samples())["samples"]
    tokens, routing = sample["tokens"], sample["routing"]
    assert routing["shape"] == [len(tokens) - 1, 2, 2]
    assert turns[1]["routing_rows"] == len(tokens) - 1 - known
    rows = np.frombuffer(pybase64.b64decode(routing["data"]), routing["dtype"]).reshape(routing["shape"])
    whole = await room.served.generate(tokens, {"max_new_tokens": 0}, return_routed_experts=True)
    np.testing.assert_array_equal(rows, room.served.rows(whole))
    np.testing.assert_array_equal(rows, room.served.reference.routes(tokens)[:-1])
