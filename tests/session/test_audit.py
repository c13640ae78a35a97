"""The audit finds what a prompt should not hold, and takes what templates and tokenizers do to answers as expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.session.audit import audit, audit_metrics, special_ids
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.session.tree import TurnNode

from .conversations import CHAT, END, FORGETS, OTHER_END, SPECIAL, chat_tokenizer, talk

pytestmark = pytest.mark.anyio
Change = Callable[[ChatTokenizer, list[int]], Sequence[int]]


def report(tokenizer: ChatTokenizer, turns: Sequence[TurnNode]):
    return audit(turns, TemplateRenderer(tokenizer), tokenizer)


def found(tokenizer: ChatTokenizer, turns: Sequence[TurnNode]) -> list[tuple[int, str, str, str]]:
    return [(each.turn, each.kind, each.stored, each.fresh) for each in report(tokenizer, turns).differences]


def with_context(turns: Sequence[TurnNode], index: int, context: Sequence[int]) -> list[TurnNode]:
    """The turns of one conversation, with other ids before the output of one of them."""
    made: list[TurnNode] = []
    for number, node in enumerate(turns):
        ids = np.array(context, np.int32) if number == index else node.context_ids
        made.append(replace(node, parent=made[-1] if made else None, context_ids=ids))
    return made


async def test_what_a_template_that_only_appends_wrote_is_equal() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", "two"), ("next", "the answer"), ("next", "3"))
    got = report(tokenizer, session.tree.nodes)
    assert (got.turns, got.differences, got.refused, got.clean) == (3, (), (), True)


async def test_thoughts_that_the_template_drops_are_expected() -> None:
    tokenizer = chat_tokenizer(FORGETS)
    thought = "<think>\nhaving</think>\n\n4"
    session = await talk(tokenizer, ("one", thought), ("next", thought), ("next", "3"))
    got = report(tokenizer, session.tree.nodes)
    assert [(each.turn, each.kind) for each in got.differences] == [(0, "assistant_text"), (1, "assistant_text")]
    assert (got.differences[0].stored, got.differences[0].fresh) == ("<think>\nhaving</think>\n\n", "")
    assert got.differences[0].position == len(session.tree.nodes[0].context_ids)
    assert got.clean


async def test_a_text_that_was_sampled_in_other_pieces_is_expected() -> None:
    tokenizer = chat_tokenizer()
    drifted = [*tokenizer.encode("hav"), *tokenizer.encode("ing"), END]
    assert drifted[:-1] != tokenizer.encode("having")
    session = await talk(tokenizer, ("one", drifted), ("next", "two"))
    assert found(tokenizer, session.tree.nodes) == [(0, "assistant_text", "having", "having")]


async def test_another_stop_than_the_close_of_history_is_expected() -> None:
    tokenizer = chat_tokenizer()
    said = [*tokenizer.encode("two"), OTHER_END]
    session = await talk(tokenizer, ("one", said), ("next", "3"))
    assert found(tokenizer, session.tree.nodes) == [(0, "assistant_text", "<|endoftext|>", "<|im_end|>")]


async def test_a_turn_that_was_cut_is_closed_as_the_template_closes() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", tokenizer.encode("the answer")), ("next", "3"))
    assert found(tokenizer, session.tree.nodes) == []


async def test_every_branch_is_compared_with_its_own_history() -> None:
    tokenizer = chat_tokenizer()
    left = await talk(tokenizer, ("one", "two"), ("next", "3"))
    right = await talk(tokenizer, ("one", "two"), ("question", "4"))
    first = left.tree.nodes[0]
    turns = [*left.tree.nodes, replace(right.tree.nodes[1], parent=first)]
    assert report(tokenizer, turns).differences == ()


def doubled_bos(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return [context[0], *context]


def lost_bos(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return context[1:]


def wrong_role(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return replaced(context, tokenizer.encode("user\n"), tokenizer.encode("system\n"))


def typed_special(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    at = context.index(END) - 1
    return [*context[:at], END, *context[at:]]


def other_text(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    at = context.index(END)
    return [*context[: at - 1], *tokenizer.encode("xyz"), *context[at:]]


def lost_separator(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return context[1:]


def doubled_separator(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return [context[0], *context]


def doubled_close(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return [END, *context]


def lost_generation_prompt(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return context[: -len(tokenizer.encode("<|im_start|>assistant\n"))]


def doubled_message(tokenizer: ChatTokenizer, context: list[int]) -> list[int]:
    return [*context[: context.index(END) + 1], *context]


def replaced(ids: list[int], old: list[int], new: list[int]) -> list[int]:
    at = next(at for at in range(len(ids)) if ids[at : at + len(old)] == old)
    return [*ids[:at], *new, *ids[at + len(old) :]]


FAULTS: list[tuple[int, Change, str]] = [
    (0, doubled_bos, "special_tokens"),
    (0, lost_bos, "special_tokens"),
    (0, wrong_role, "other_text"),
    (0, typed_special, "special_tokens"),
    (0, other_text, "other_text"),
    (0, lost_generation_prompt, "special_tokens"),
    *(
        (turn, change, kind)
        for turn in (1, 2)
        for change, kind in (
            (wrong_role, "other_text"),
            (typed_special, "special_tokens"),
            (other_text, "other_text"),
            (lost_separator, "other_text"),
            (doubled_separator, "other_text"),
            (doubled_close, "special_tokens"),
            (lost_generation_prompt, "special_tokens"),
            (doubled_message, "special_tokens"),
        )
    ),
]


@pytest.mark.parametrize(("turn", "change", "kind"), FAULTS, ids=lambda each: getattr(each, "__name__", str(each)))
@pytest.mark.parametrize("drift", [False, True])
async def test_a_planted_fault_is_found_once_in_its_turn(turn: int, change: Change, kind: str, drift: bool) -> None:
    tokenizer = chat_tokenizer()
    said = [*tokenizer.encode("hav"), *tokenizer.encode("ing"), END] if drift else "the answer"
    session = await talk(tokenizer, ("one question", said), ("one question", said), ("next question", "3"))
    turns = session.tree.nodes
    planted = with_context(turns, turn, change(tokenizer, turns[turn].context_ids.tolist()))
    bugs = [each for each in found(tokenizer, planted) if each[1] != "assistant_text"]
    assert [each[:2] for each in bugs] == [(turn, kind)]


async def test_a_cut_turn_that_was_not_closed_is_found() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", tokenizer.encode("the answer")), ("next", "3"))
    turns = session.tree.nodes
    assert turns[1].context_ids[0] == END
    assert found(tokenizer, with_context(turns, 1, turns[1].context_ids[1:])) == [
        (1, "special_tokens", "", "<|im_end|>")
    ]


async def test_special_text_that_a_user_typed_is_no_fault_as_long_as_it_stays_text() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one <|im_end|>", "two"), ("next <|im_start|>system", "3"))
    assert found(tokenizer, session.tree.nodes) == []
    typed = tokenizer.encode("\n<|im_start|>user\nnext <|im_start|>system<|im_end|>\n<|im_start|>assistant\n")
    ((turn, kind, stored, _),) = found(tokenizer, with_context(session.tree.nodes, 1, typed))
    assert (turn, kind, stored) == (1, "special_tokens", "<|im_start|>")


async def test_messages_that_a_template_rewrites_later_are_held_against_their_own_time() -> None:
    """Tools stand before the last question, as in some families: that is no fault of what was stored."""
    moving = (
        "{% for m in messages %}{% if loop.last and tools %}[{{ tools[0].function.name }}]{% endif %}<|im_start|>"
        "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = chat_tokenizer(moving)
    tools = ({"type": "function", "function": {"name": "add", "parameters": {}}},)
    session = await talk(tokenizer, ("one", "two"), ("next", "3"), ("next", "4"), tools=tools)
    assert "[add]" in tokenizer.decode(session.tree.nodes[1].context_ids.tolist())
    assert report(tokenizer, session.tree.nodes).differences == ()


async def test_a_history_that_the_template_refuses_is_told_and_is_no_bug() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", "two"), ("next", "3"))
    picky = chat_tokenizer("{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}" + CHAT)
    got = audit(session.tree.nodes, TemplateRenderer(picky), picky)
    assert (got.differences, got.clean) == ((), True)
    assert [(turn, "too long" in reason) for turn, reason in got.refused] == [(1, True)]


async def test_metrics_count_turns_by_kind() -> None:
    tokenizer = chat_tokenizer()
    session = await talk(tokenizer, ("one", "two"), ("next", "3"))
    turns = session.tree.nodes
    planted = with_context(turns, 1, doubled_close(tokenizer, turns[1].context_ids.tolist()))
    assert audit_metrics([]) == {}
    assert audit_metrics([report(tokenizer, turns), report(tokenizer, planted)]) == {
        "session/audit/conversations": 2.0,
        "session/audit/special_tokens": 1.0,
        "session/audit/other_text": 0.0,
        "session/audit/assistant_text": 0.0,
    }


def test_special_ids_are_those_that_text_must_not_become() -> None:
    tokenizer = chat_tokenizer()
    assert special_ids(tokenizer) == {tokenizer.tokenizer.convert_tokens_to_ids(text) for text in SPECIAL}


SAID = st.lists(st.integers(6, 400), min_size=1, max_size=6)
TEXT = st.lists(st.sampled_from(["one", " next", "\n", "having", "7", "ß", "<|im_end|>", "assistant"]), max_size=4)


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(st.tuples(TEXT, SAID, st.booleans()), min_size=1, max_size=4))
def test_a_session_of_whatever_was_said_never_holds_a_bug(rounds) -> None:
    tokenizer = chat_tokenizer()
    talks = [("".join(asked), [*said, END] if stops else said) for asked, said, stops in rounds]
    session = anyio.run(lambda: talk(tokenizer, *talks))
    assert report(tokenizer, session.tree.nodes).clean
