"""``[session] match``: which stored turn a request continues when a client changed what it sends back."""

from __future__ import annotations

import pytest

from miles_core.errors import SessionError
from miles_core.session.matching import tool_arguments
from miles_core.session.session import TokenSession
from miles_core.types import ImagePart, Message, SamplingParams, TextPart

from .test_session import ScriptedEngine

pytestmark = pytest.mark.anyio
SAMPLING = SamplingParams(max_new_tokens=8)
ASKED = Message("user", "value of c?")


def ignoring_spaces(stored: Message, given: Message) -> bool:
    return stored.role == given.role and stored.text.split() == given.text.split()


@pytest.fixture
def open_session(chat):
    def make(*texts: str, **options) -> TokenSession:
        engine = ScriptedEngine(chat, *texts)
        return TokenSession(chat, engine, None, task_id="t", group_id="g", trajectory_id="x", **options)

    return make


async def generate(session: TokenSession, *messages: Message):
    return await session.generate(session.prepare(messages), SAMPLING)


async def test_a_message_that_matches_continues_the_stored_tokens(open_session, chat) -> None:
    session = open_session("get  c", "2", match=ignoring_spaces)
    await generate(session, ASKED)
    prompt = session.prepare([ASKED, Message("assistant", "get c"), Message("tool", "2")])
    assert prompt.parent is session.tree.nodes[0]
    assert "get  c<|im_end|>" in chat.decode(list(prompt.input_ids)), "what was generated, not what came back"
    turn = await session.generate(prompt, SAMPLING)
    assert [m.text for m in session.conversations(turn)[0].messages] == ["value of c?", "get  c", "2", "2"]


async def test_without_it_the_same_request_begins_anew(open_session) -> None:
    session = open_session("get  c")
    await generate(session, ASKED)
    assert session.prepare([ASKED, Message("assistant", "get c"), Message("tool", "2")]).parent is None


async def test_of_equally_deep_turns_an_equal_one_wins_over_a_later_one_that_matches(open_session) -> None:
    session = open_session("get c", "get  c", match=ignoring_spaces)
    await generate(session, ASKED)
    await generate(session, ASKED)
    first, second = session.tree.nodes
    assert session.prepare([ASKED, first.response, Message("tool", "2")]).parent is first
    assert session.prepare([ASKED, second.response, Message("tool", "2")]).parent is second
    assert session.prepare([ASKED, Message("assistant", "get   c"), Message("tool", "2")]).parent is second


async def test_a_deeper_turn_that_matches_wins_over_a_shallow_equal_one(open_session) -> None:
    session = open_session("get c", "2", match=ignoring_spaces)
    first = await generate(session, ASKED)
    await generate(session, ASKED, first.message, Message("tool", "2"))
    given = [ASKED, first.message, Message("tool", " 2"), Message("assistant", "2"), Message("user", "sure?")]
    assert session.prepare(given).parent is session.tree.nodes[1]


async def test_equal_messages_match_without_asking(open_session) -> None:
    def never(stored, given):
        raise AssertionError("asked")

    session = open_session("get c", match=never)
    turn = await generate(session, ASKED)
    assert session.prepare([ASKED, turn.message, Message("tool", "2")]).parent is session.tree.nodes[0]


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (lambda stored, given: 1, r"test_matching:<lambda> must return a bool; got 1"),
        (lambda stored, given: given.txt, r"test_matching:<lambda> raised AttributeError: 'Message' object has no"),
    ],
)
async def test_a_match_that_fails_names_the_function(open_session, match, message: str) -> None:
    session = open_session("get c", match=match)
    await generate(session, ASKED)
    with pytest.raises(SessionError, match=message):
        session.prepare([Message("user", "other?"), Message("assistant", "get c"), Message("tool", "2")])


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


def said(**changes) -> Message:
    function = {**CALL["function"], **changes.pop("function", {})}
    call = {**CALL, **changes.pop("call", {}), "function": function}
    return Message(**{"role": "assistant", "content": "so", "tool_calls": (call,), **changes})


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (said(), True),
        (said(function={"arguments": '{"b":2,"a":1}'}), True),
        (said(function={"arguments": {"a": 1, "b": 2}}), True),
        (said(content=(TextPart("s"), TextPart("o"))), True),
        (said(extra={"reasoning_content": "hm"}), True),
        (said(extra={"reasoning_content": "other"}), False),
        (said(function={"arguments": '{"a": 1, "b": 3}'}), False),
        (said(function={"arguments": '{"a": 1, "b": '}), False),
        (said(function={"name": "sub"}), False),
        (said(call={"id": "c2"}), False),
        (said(content="so "), False),
        (said(content=(TextPart("so"), ImagePart("a.png"))), False),
        (said(tool_calls=()), False),
        (said(name="n"), False),
        (said(extra={"audio": "a"}), False),
    ],
)
def test_arguments_are_compared_as_json_and_all_else_as_it_is(given: Message, same: bool) -> None:
    stored = said(extra={"reasoning_content": "hm"})
    assert tool_arguments(stored, given) is same


@pytest.mark.parametrize(("kept", "shown"), [("1e999", '"1e999"'), ("[NaN, -Infinity]", '["NaN", "-Infinity"]')])
def test_a_number_that_no_reply_can_hold_matches_the_text_that_stood_for_it(kept: str, shown: str) -> None:
    stored = said(function={"arguments": f'{{"a": {kept}}}'})
    assert tool_arguments(stored, said(function={"arguments": f'{{"a": {shown}}}'}))
    assert not tool_arguments(stored, said(function={"arguments": '{"a": 2}'}))


async def test_other_tools_begin_another_conversation(open_session) -> None:
    session = open_session("get c")
    await generate(session, ASKED)
    given = [ASKED, Message("assistant", "get c"), Message("tool", "2")]
    assert session.prepare(given).parent is session.tree.nodes[0]
    assert session.prepare(given, [{"type": "function", "function": {"name": "get"}}]).parent is None
