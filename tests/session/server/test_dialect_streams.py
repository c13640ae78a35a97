"""What the SDKs put together of a stream is the reply that does not stream, and comes back as the stored message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anthropic.types
import numpy as np
import openai.types.responses
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.responses._responses import ResponseStreamState
from pydantic import TypeAdapter

from miles_core.kinds.sessions import Turn
from miles_core.session.matching import tool_arguments
from miles_core.session.parsing.reader import Delta
from miles_core.session.registry import OpenSession
from miles_core.session.server.answer import Answer, Choice
from miles_core.session.server.dialects.messages import MessagesDialect
from miles_core.session.server.dialects.responses import ResponsesDialect
from miles_core.session.server.request import ChatRequest
from miles_core.types import FinishReason, Generation, Message

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=2))
ANTHROPIC_EVENT: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
CALLS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=2)


def said(reasoning: str, content: str, calls: list[dict[str, Any]]) -> Message:
    made = tuple(
        {"id": f"call{n}", "type": "function", "function": {"name": "f", "arguments": json.dumps(call, indent=n)}}
        for n, call in enumerate(calls)
    )
    return Message("assistant", content, made, extra={"reasoning_content": reasoning} if reasoning else {})


def answer_of(message: Message, finish: FinishReason) -> Answer:
    generation = Generation(np.zeros(3, np.int32), np.zeros(3, np.float32), finish)
    choice = Choice(0, Turn(message, generation), lambda ids: "")
    return Answer("abc", 1, "m", (choice,), prompt_tokens=7, completion_tokens=3, cached_tokens=2)


def deltas(message: Message, cut: int) -> Iterable[Delta]:
    """The message in pieces, with calls in the last."""
    thought = str(message.extra.get("reasoning_content", ""))
    yield Delta(reasoning=thought[:cut])
    yield Delta(reasoning=thought[cut:], content=message.text[:cut])
    yield Delta(content=message.text[cut:], tool_calls=message.tool_calls)


def opened() -> OpenSession:
    return OpenSession("s", None, kept=False, now=0.0)  # type: ignore[arg-type]


def events(writer: Any, message: Message, cut: int, answer: Answer) -> list[dict[str, Any]]:
    raw = [*writer.start(7)]
    for delta in deltas(message, cut):
        raw += writer.delta(0, delta)
    return [json.loads(one.split(b"\ndata: ")[1]) for one in (*raw, *writer.finish(answer))]


FINISHES = st.sampled_from([FinishReason("stop", 5), FinishReason("stop", "END"), FinishReason("length")])


@settings(deadline=None, max_examples=50)
@given(TEXTS, TEXTS, CALLS, st.integers(0, 12), FINISHES)
def test_messages(reasoning: str, content: str, calls: list[dict[str, Any]], cut: int, finish: FinishReason) -> None:
    dialect, message = MessagesDialect(), said(reasoning, content, calls)
    answer, request = answer_of(message, finish), ChatRequest(())
    reply = dialect.reply(answer, request)
    parsed = anthropic.types.Message.model_validate(reply)  # strictly: SDKs take anything
    snapshot, buffers = None, dict[int, bytes]()
    writer = dialect.stream(request, id="abc", created=1, model="m")
    for event in events(writer, message, cut, answer):
        snapshot = accumulate_event(
            event=ANTHROPIC_EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
        )
    assert snapshot is not None
    assert snapshot.to_dict(exclude_none=True) == parsed.to_dict(exclude_none=True)
    back = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [b.to_dict() for b in parsed.content]}]
    body = json.loads(json.dumps({"messages": [*back, {"role": "user", "content": "y"}], "max_tokens": 1}))
    assert tool_arguments(message, dialect.parse(body, opened()).messages[1])


@settings(deadline=None, max_examples=50)
@given(TEXTS, TEXTS, CALLS, st.integers(0, 12), FINISHES)
def test_responses(reasoning: str, content: str, calls: list[dict[str, Any]], cut: int, finish: FinishReason) -> None:
    dialect, message = ResponsesDialect(), said(reasoning, content, calls)
    answer, request = answer_of(message, finish), dialect.parse({"input": "x", "instructions": "be kind"}, opened())
    reply = dialect.reply(answer, request)
    parsed = openai.types.responses.Response.model_validate(reply)
    state: Any = ResponseStreamState(input_tools=[], text_format=openai.omit)
    fired: list[Any] = []
    made = events(dialect.stream(request, id="abc", created=1, model="m"), message, cut, answer)
    for number, event in enumerate(made):
        assert event["sequence_number"] == number
        fired += state.handle_event(OPENAI_EVENT.validate_python(event))
    last = fired[-1]
    assert last.type == f"response.{parsed.status}"
    assert last.response.to_dict(exclude_none=True) == parsed.to_dict(exclude_none=True)
    back = [item.to_dict() for item in parsed.output]
    body = json.loads(json.dumps({"input": [{"role": "user", "content": "x"}, *back]}))
    assert tool_arguments(message, dialect.parse(body, opened()).messages[1])
    done = [event["item"] for event in made if event["type"] == "response.output_item.done"]
    assert done == reply["output"]
