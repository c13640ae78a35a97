"""``[session] pick``: tokens, masks, versions and routing rows are right for whichever turn is picked."""

from __future__ import annotations

import pytest

from miles_core.errors import SessionError
from miles_core.session.picking import last, longest
from miles_core.session.session import TokenSession
from miles_core.types import Message, SamplingParams, Status

from .test_session import SPEC, ScriptedEngine, experts_at

pytestmark = pytest.mark.anyio
SAMPLING = SamplingParams(max_new_tokens=8)
ASKED = Message("user", "value of c?")


@pytest.fixture
def branched(chat):
    """A first turn of two branches: a long one of two turns, and a short one that is stored last."""

    async def make(pick) -> TokenSession:
        engine = ScriptedEngine(chat, "get c", "2", "no")
        session = TokenSession(chat, engine, SPEC, task_id="t", group_id="g", trajectory_id="x", pick=pick)
        first = await session.generate(session.prepare([ASKED]), SAMPLING)
        await session.generate(session.prepare([ASKED, first.message, Message("tool", "2")]), SAMPLING)
        await session.generate(session.prepare([ASKED]), SAMPLING)
        return session

    return make


@pytest.mark.parametrize(
    ("pick", "texts", "calls"),
    [
        (last, ["no"], [2]),
        (longest, ["get c", "2"], [0, 1]),
        (lambda turns: turns[0], ["get c"], [0]),
        (lambda turns: next(turn for turn in turns if turn.parent is not None), ["get c", "2"], [0, 1]),
    ],
)
async def test_what_is_picked_has_the_tokens_versions_and_routing_of_its_own_calls(
    branched, chat, pick, texts: list[str], calls: list[int]
) -> None:
    session = await branched(pick)
    sample = session.samples(status=Status.COMPLETED)[0]
    trained = sample.tokens[sample.loss_mask == 1].tolist()
    assert chat.decode(trained) == "".join(f"{text}<|im_end|>" for text in texts)
    assert [span.version for span in sample.versions] == calls, "each call of the engine has a version of its own"
    assert sample.routing is not None
    nodes = session.conversations()[0].turns
    starts = [0, *(node.rows for node in nodes)]
    for call, start, end in zip(calls, starts, starts[1:], strict=False):
        for position in range(start, end):
            assert sample.routing.experts[position].tolist() == experts_at(position, call)
    assert sample.routing.rows == len(sample.tokens) - 1


async def test_a_turn_that_is_given_is_taken_whatever_the_pick_says(chat) -> None:
    session = TokenSession(chat, ScriptedEngine(chat, "a", "b"), None, task_id="t", group_id="g", trajectory_id="x")
    first = await session.generate(session.prepare([ASKED]), SAMPLING)
    await session.generate(session.prepare([ASKED]), SAMPLING)
    (conversation,) = session.conversations(first)
    assert conversation.messages[-1].text == "a"
    (sample,) = session.samples(status=Status.COMPLETED, turn=first)
    assert [span.version for span in sample.versions] == [0]


async def test_the_longest_of_equal_ones_is_the_latest(chat) -> None:
    session = TokenSession(
        chat, ScriptedEngine(chat, "a", "b"), None, task_id="t", group_id="g", trajectory_id="x", pick=longest
    )
    for _ in range(2):
        await session.generate(session.prepare([ASKED]), SAMPLING)
    assert session.conversations()[0].messages[-1].text == "b"


async def test_before_the_first_turn_there_is_nothing_to_pick(chat) -> None:
    session = TokenSession(chat, ScriptedEngine(chat), None, task_id="t", group_id="g", trajectory_id="x")
    assert session.conversations() == ()
    assert session.samples(status=Status.FAILED) == ()


@pytest.mark.parametrize(
    ("pick", "message"),
    [
        (lambda turns: turns[7], "raised IndexError"),
        (lambda turns: None, "must return one or some of the turns that it gets; got None"),
        (lambda turns: turns[0].response, "must return one or some of the turns that it gets; got Message"),
    ],
)
async def test_a_pick_that_fails_names_the_function(branched, pick, message: str) -> None:
    session = await branched(pick)
    with pytest.raises(SessionError, match=f"session.pick: .*test_picking:<lambda> {message}"):
        session.conversations()


async def test_a_turn_of_another_session_cannot_be_picked(chat) -> None:
    session, other = (
        TokenSession(chat, ScriptedEngine(chat, "a"), None, task_id="t", group_id="g", trajectory_id=name)
        for name in "xy"
    )
    turn = await other.generate(other.prepare([ASKED]), SAMPLING)
    with pytest.raises(SessionError, match="only a turn of this session"):
        session.conversations(turn)


async def converse(session: TokenSession, *texts: str, tools=()) -> list[Message]:
    """One path: the texts are the policy's, each asked for by a message of its own."""
    messages: list[Message] = []
    for index, _ in enumerate(texts):
        messages.append(Message("user", f"q{index}"))
        turn = await session.generate(session.prepare(messages, tools), SAMPLING)
        messages.append(turn.message)
    return messages


def trained_texts(chat, samples) -> list[str]:
    return [chat.decode(sample.tokens[sample.loss_mask == 1].tolist()).replace("<|im_end|>", ".") for sample in samples]


async def test_each_leaf_is_a_sample_and_what_they_share_is_trained_once(chat) -> None:
    session = TokenSession(
        chat, ScriptedEngine(chat, "a", "b", "c"), SPEC, task_id="t", group_id="g", trajectory_id="x"
    )
    messages = await converse(session, "a", "b")
    other = [*messages[:2], Message("user", "another way")]
    await session.generate(session.prepare(other), SAMPLING)
    first, second = session.samples(status=Status.COMPLETED)
    assert trained_texts(chat, (first, second)) == ["a.b.", "c."]
    assert [span.version for span in first.versions] == [0, 1]
    assert [span.version for span in second.versions] == [2], "the shared turn is in the tokens, but not in the loss"
    assert "a<|im_end|>" in chat.decode(second.tokens.tolist())
    assert second.routing.rows == len(second.tokens) - 1


async def test_a_retry_counts_in_place_of_the_turn_that_nobody_continued(chat) -> None:
    session = TokenSession(chat, ScriptedEngine(chat, "a", "b"), None, task_id="t", group_id="g", trajectory_id="x")
    for _ in range(2):
        await session.generate(session.prepare([ASKED]), SAMPLING)
    assert trained_texts(chat, session.samples(status=Status.COMPLETED)) == ["b."]


async def test_of_several_choices_the_one_that_was_continued_counts(chat) -> None:
    session = TokenSession(
        chat, ScriptedEngine(chat, "a", "b", "c"), None, task_id="t", group_id="g", trajectory_id="x"
    )
    first = await session.generate(session.prepare([ASKED]), SAMPLING)
    await session.generate(session.prepare([ASKED]), SAMPLING)
    await session.generate(session.prepare([ASKED, first.message, Message("tool", "2")]), SAMPLING)
    assert trained_texts(chat, session.samples(status=Status.COMPLETED)) == ["a.c."]


async def test_a_greedy_turn_is_kept_but_not_trained(chat) -> None:
    session = TokenSession(chat, ScriptedEngine(chat, "a", "b"), None, task_id="t", group_id="g", trajectory_id="x")
    first = await session.generate(session.prepare([ASKED]), SamplingParams(temperature=0.0, max_new_tokens=8))
    await session.generate(session.prepare([ASKED, first.message, Message("tool", "2")]), SAMPLING)
    (sample,) = session.samples(status=Status.COMPLETED)
    assert trained_texts(chat, [sample]) == ["b."]
    assert [record.sampling.temperature for record in sample.turns] == [0.0, 1.0]


async def test_a_pick_may_name_several_and_one_inside_another_adds_nothing(chat) -> None:
    session = TokenSession(
        chat,
        ScriptedEngine(chat, "a", "b"),
        None,
        task_id="t",
        group_id="g",
        trajectory_id="x",
        pick=lambda turns: turns[::-1],
    )
    await converse(session, "a", "b")
    assert trained_texts(chat, session.samples(status=Status.COMPLETED)) == ["a.b."]
