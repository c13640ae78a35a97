"""A session's record is plain JSON that holds every token, and reads back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from miles_core.errors import DataError
from miles_core.kinds.sessions import Prompt
from miles_core.session.record import read_record, recorded_clock, session_record
from miles_core.types import Message, SamplingParams

from .conversations import chat_tokenizer, talk

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_a_record_survives_json_with_every_token_and_message() -> None:
    session = await talk(chat_tokenizer(), ("one", "two"), ("next", [5, 6, 7]))
    again = read_record(json.loads(json.dumps(session_record(session))))
    for stored, read in zip(session.tree.nodes, again, strict=True):
        assert np.array_equal(stored.tokens(), read.tokens())
        assert list(stored.messages()) == list(read.messages())
        assert (stored.sampling, stored.stop, stored.finish_reason) == (read.sampling, read.stop, read.finish_reason)
        assert (stored.versions, stored.cached_tokens, stored.tools) == (read.versions, read.cached_tokens, read.tools)
        assert np.array_equal(stored.logprobs, read.logprobs)


async def test_branches_name_their_parent() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", "two"), ("next", "three"))
    first = session.tree.nodes[0]
    session._client._answers.append([9, 2])  # the scripted engine has one more answer
    asked = [*first.messages(), Message("user", "other")]
    await session.generate(session.prepare(asked), SamplingParams(temperature=0.0))
    turns = session_record(session)["turns"]
    assert [turn["parent"] for turn in turns] == [None, 0, 0]
    assert [turn["trainable"] for turn in turns] == [True, True, False]
    assert [turn["finish_reason"]["matched"] for turn in turns] == [2, 2, 2]


async def test_tools_and_read_only_mappings_become_plain_json() -> None:
    session = await talk(chat_tokenizer(), ("one", "two"), tools=(TOOL,))
    assert json.loads(json.dumps(session_record(session)))["turns"][0]["tools"] == [TOOL]
    assert isinstance(session.prepare([Message("user", "x")]), Prompt)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda turn: turn.pop("context_ids"), "'context_ids' is missing"),
        (lambda turn: turn.update(context_ids=["a"]), "token ids are lists of integers"),
        (lambda turn: turn.update(parent=1), "turn 0 names turn 1 as its parent"),
        (lambda turn: turn.update(appended=[{"content": "x"}]), "a message needs a text 'role'"),
        (lambda turn: turn.update(output_ids=[1 << 40]), "record of a session"),
    ],
)
async def test_what_is_no_record_is_refused_by_name(change, problem: str) -> None:
    record = session_record(await talk(chat_tokenizer(), ("one", "two")))
    change(record["turns"][0])
    with pytest.raises(DataError, match=problem):
        read_record(record)


def test_a_clock_is_an_iso_time() -> None:
    assert recorded_clock({"clock": None}) is None
    assert str(recorded_clock({"clock": "2025-07-10T12:00:00"})) == "2025-07-10 12:00:00"
    with pytest.raises(DataError, match="noon"):
        recorded_clock({"clock": "noon"})
