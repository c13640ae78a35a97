"""Conversations that differ in all that a template can tell apart, to find out whether the history matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.template.dummies import dummies
from miles_core.session.template.forms import CALL_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.template.literals import Literals
    from miles_core.session.template.render import Chat

History = tuple["Chat", ...]
ENDS = ("user", "tool")
"""Roles that end the conversations: a policy answers a user or the results of its calls. All contents are text."""

_PAST_ID = "past0000{}"  # as strict as CALL_ID, and none of the turn's own
_MOST_TURNS = 64
_MOST_CHARACTERS = 1 << 15
_ASK: Chat = {"role": "user", "content": "one"}
_ANSWER: Chat = {"role": "assistant", "content": "two"}
_RULE: Chat = {"role": "system", "content": "three"}


def general(literals: Literals) -> Iterator[History]:
    """Conversations of every shape, with usual contents and with all texts of the template; the shortest first."""
    yield from dummies()
    yield from _of_other_shapes()
    turns = 2 + max([8, *(number for number in literals.numbers if number <= _MOST_TURNS)])
    yield (_RULE, *(_ASK, _ANSWER) * turns, _ASK)
    yield (_ASK, *(*_round(0), _ANSWER, _ASK) * turns)
    length = 1 + min(max([1000, *literals.numbers]), _MOST_CHARACTERS)
    for content in ("", " ", "x" * length):
        yield from _of_content(content)
    yield from of_all_texts(literals)
    joined = _joined(literals)
    yield (_ASK, {**_ANSWER, "reasoning_content": joined}, _ASK)
    yield from _of_content(joined)


def particular(literals: Literals) -> Iterator[History]:
    """Conversations with one text or one field of those that the template names."""
    for text in literals.texts:
        yield from _of_content(text)
        if text.isidentifier():
            yield (_ASK, _ANSWER, {"role": text, "content": "one"}, _ASK)
    for name in literals.names:
        for value in (True, "one"):
            yield ({**_ASK, name: value}, {**_ANSWER, name: value}, {**_ASK, name: value})
        yield ({**_RULE, name: True}, _ASK)


def of_all_texts(literals: Literals) -> Iterator[History]:
    """Conversations that hold all texts of the template in every message."""
    joined = _joined(literals)
    said, asked = {**_ANSWER, "content": joined}, {**_ASK, "content": joined}
    for rule in ((), ({**_RULE, "content": joined},)):
        yield (*rule, asked, *_round(0, content=joined), said, asked)
        yield (*rule, asked, said, asked)


def _joined(literals: Literals) -> str:
    return " one ".join(literals.texts)


def _of_other_shapes() -> Iterator[History]:
    yield (_ASK, *_round(0))
    yield (_ASK, *_round(0), *_round(1))
    yield (_ASK, *_round(0, count=2))
    yield (_ASK, *_round(0, identifier=CALL_ID), _ANSWER, _ASK)  # as the turn's own: some clients count anew
    yield (_RULE, _ASK, *_round(0, count=2), _ANSWER, _ASK)
    yield (_RULE, _ASK, *_round(0, beside="two"), *_round(1, count=3), _ANSWER, _ASK, _ANSWER, _ASK)
    yield (_ASK, {**_ANSWER, "reasoning_content": "four"}, _ASK)
    yield (_ASK, *_round(0, reasoning_content="four"), {**_ANSWER, "reasoning_content": "four"}, _ASK)
    yield (_ASK, _ANSWER, _RULE, _ASK)
    yield (_RULE, _RULE, _ASK)
    yield (_ASK, _ASK)


def _round(
    number: int,
    *,
    count: int = 1,
    beside: str = "",
    content: str = "four",
    name: str = "other",
    identifier: str = _PAST_ID,
    **fields: Any,
) -> list[Chat]:
    """Calls and their results; ``beside`` stands beside the calls."""
    ids = [identifier.format(3 * number + index) for index in range(count)]
    calls = [{"id": each, "type": "function", "function": {"name": name, "arguments": {"q": name}}} for each in ids]
    results = [{"role": "tool", "content": content, "tool_call_id": each, "name": name} for each in ids]
    return [{"role": "assistant", "content": beside, "tool_calls": calls, **fields}, *results]


def _of_content(content: str) -> Iterator[History]:
    """The content in messages of each role, with more conversation after it and without."""
    rule, asked, said = ({**each, "content": content} for each in (_RULE, _ASK, _ANSWER))
    name = content if content.strip() else "other"
    yield (rule, _ASK)
    yield (asked, said, _ASK)
    yield (_ASK, _ANSWER, asked)
    yield (_ASK, *_round(0, content=content, name=name), said, _ASK)
    yield (_ASK, *_round(0, content=content))
