"""The tree: requests find the deepest turn that they continue, and what is kept grows with what was said."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from miles_core.session.matching import exact
from miles_core.session.tree import SessionTree, TurnNode
from miles_core.types import FinishReason, Message, SamplingParams

WORDS = st.sampled_from(["a", "b"])
TOOLS = ((), ({"type": "function", "function": {"name": "get"}},))


def node(parent: TurnNode | None, asked: list[str], said: str, tools=(), tokens: int = 2) -> TurnNode:
    return TurnNode(
        parent=parent,
        tools=tools,
        appended=tuple(Message("user", text) for text in asked),
        response=Message("assistant", said),
        context_ids=np.arange(tokens, dtype=np.int32),
        output_ids=np.arange(1, dtype=np.int32),
        logprobs=np.zeros(1, np.float32),
        versions=(),
        sampling=SamplingParams(),
        stop=None,
        finish_reason=FinishReason("stop"),
        cached_tokens=0,
        routing=None,
    )


@st.composite
def trees(draw: st.DrawFn) -> SessionTree:
    tree = SessionTree(same_letter)
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([None, *tree.nodes]))
        tools = draw(st.sampled_from(TOOLS)) if parent is None else parent.tools
        asked = draw(st.lists(WORDS, min_size=1, max_size=2))
        tree.append(node(parent, asked, draw(WORDS), tools))
    return tree


def same_letter(stored: Message, given: Message) -> bool:
    return stored.role == given.role and stored.text == given.text.lower()


def naive(tree: SessionTree, messages: list[Message], tools) -> TurnNode | None:
    """All turns, one by one: the deepest, then the equal, then the latest."""
    found = []
    for index, each in enumerate(tree.nodes):
        path = list(each.messages())
        given = messages[: len(path)]
        if each.tools != tools or len(path) >= len(messages):
            continue
        if all(same_letter(a, b) for a, b in zip(path, given, strict=True)):
            found.append((len(path), path == given, index))
    return tree.nodes[max(found)[2]] if found else None


@given(trees(), st.lists(st.sampled_from(["a", "b", "A", "B"]), min_size=1, max_size=8), st.sampled_from(TOOLS))
def test_the_turn_that_is_found_is_the_one_that_looking_at_all_of_them_finds(tree, texts, tools) -> None:
    for pattern in ("ua", "uua"):  # one or two messages before each answer
        roles = [pattern[i % len(pattern)] for i in range(len(texts))]
        messages = [Message("user" if r == "u" else "assistant", t) for r, t in zip(roles, texts, strict=True)]
        best, rest = tree.deepest(messages, tools)
        assert best is naive(tree, messages, tools)
        assert list(rest) == messages[best.count if best else 0 :]


@given(trees())
def test_what_is_kept_is_each_turn_once(tree) -> None:
    assert (
        tree.tokens == sum(len(each.context_ids) + len(each.output_ids) for each in tree.nodes) == 3 * len(tree.nodes)
    )
    for each in tree.nodes:
        assert each.length == len(each.tokens()) == 3 * len(each.path())
        assert each.count == len(list(each.messages()))


def test_a_conversation_of_many_turns_compares_each_message_once() -> None:
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    tree = SessionTree(exact)
    parent = None
    for _ in range(50):
        parent = node(parent, [Counted("a")], Counted("b"))
        tree.append(parent)
    messages = [Message("user", "a"), Message("assistant", "b")] * 50 + [Message("user", "c")]
    assert tree.deepest(messages)[0] is parent
    assert compared <= 100
