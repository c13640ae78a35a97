"""What a client sends back of a reply, whole or put together of a stream, is the message that is stored."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from miles_core.kinds.sessions import Turn
from miles_core.session.parsing.reader import Delta
from miles_core.session.server.answer import Answer, Choice
from miles_core.session.server.dialects.chat import ChatDialect
from miles_core.session.server.dialects.chat_messages import parse_messages
from miles_core.session.server.request import ChatRequest
from miles_core.types import FinishReason, Generation, Message

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALLS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=3)


def said(reasoning: str, content: str, calls: list[tuple[str, str, str]]) -> Message:
    made = tuple(
        {"id": f"{number}{key}", "type": "function", "function": {"name": f"f{name}", "arguments": arguments}}
        for number, (key, name, arguments) in enumerate(calls)
    )
    return Message("assistant", content, made, extra={"reasoning_content": reasoning} if reasoning else {})


def answer_of(message: Message) -> Answer:
    generation = Generation(np.zeros(2, np.int32), np.array([-1.0, -np.inf], np.float32), FinishReason("stop", 0))
    choice = Choice(0, Turn(message, generation), lambda ids: "x" * len(ids))
    return Answer("abc", 1, "toy", (choice,), prompt_tokens=7, completion_tokens=2, cached_tokens=2)


def sent_back(reply: ChatCompletion) -> Message:
    """As the SDK sends a message object of its own."""
    chat = json.loads(json.dumps(reply.choices[0].message.to_dict(exclude_unset=True)))
    (message,) = parse_messages([chat])
    return message


@settings(deadline=None)
@given(TEXTS, TEXTS, CALLS, st.integers(0, 12))
def test_a_reply_comes_back_as_it_was(reasoning: str, content: str, calls: Any, cut: int) -> None:
    dialect, message = ChatDialect(), said(reasoning, content, calls)
    answer, request = answer_of(message), ChatRequest((), logprobs=True, include_usage=True)
    whole = ChatCompletion.model_validate(json.loads(json.dumps(dialect.reply(answer, request), allow_nan=False)))
    assert sent_back(whole) == message
    writer, state = dialect.stream(request, id="abc", created=1, model="toy"), ChatCompletionStreamState()
    deltas = [Delta(reasoning=reasoning[:cut]), Delta(reasoning[cut:], content[:cut])]
    deltas.append(Delta(content=content[cut:], tool_calls=message.tool_calls))
    events = [*writer.start(7), *(event for delta in deltas for event in writer.delta(0, delta))]
    for event in [*events, *writer.finish(answer)][:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: ")))
    streamed = state.get_final_completion()
    assert sent_back(streamed) == message
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (streamed.usage, streamed.choices[0].logprobs) == (whole.usage, whole.choices[0].logprobs)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_text_in_parts_is_text(texts: list[str]) -> None:
    parts = [{"type": "text", "text": text} for text in texts]
    assert parse_messages([{"role": "user", "content": parts}]) == (Message("user", "".join(texts)),)
