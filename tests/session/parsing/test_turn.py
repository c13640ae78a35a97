"""What is settled of a turn never changes, and parsers of others are checked."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import SessionError
from miles_core.session.parsing.turn import TurnParser

from .chats import CALLS, HIDDEN, call, calling, chat, parser_of, written
from .test_channels import SOURCE
from .test_reasoning import CUT, SHOWN, WRAPPED

SOURCES = {
    **{form: calling(form) for form in CALLS},
    "bare": chat(HIDDEN),
    "channels": SOURCE,
    "reasoning": chat(SHOWN),
    "opened": chat(SHOWN, prompt="<think>\n"),
    "opened without a line": chat(SHOWN, prompt="<think>"),
    "cut": chat(CUT, prompt="<think>\n"),
    "wrapped": chat(WRAPPED),
    "space": chat("{{ ' ' + m.content }}" + CALLS["list"]),
}
FRAGMENTS = [
    *("\n", " ", "\n\n", "x", "<", "</", "{", "}", "[", "]", ",", "hello", "<|", "<think>", "</think>", "<tool_call>"),
    *("<|start|>assistant", "<|channel|>", "<|channel|>analysis", "<|channel|>final", "<|message|>", "<|end|>"),
    *(" to=functions.f", "<|call|>", "<call>", "<key>", "<|SAY|>", "<|/SAY|>", "<|THINK|>", "<|/THINK|>", "[TOOLS] ["),
    *('{"name": "f", "arguments": {"a": 1}}', '{"a": 1}', "f(a=1)", "</tool_call>", "<|calls|>[", "]<|/calls|>"),
]


@cache
def parser(name: str) -> TurnParser:
    return parser_of(SOURCES[name])


@cache
def fragments(name: str) -> st.SearchStrategy[str]:
    own = [] if name == "channels" else [written(SOURCES[name], content="", tool_calls=[call("look", {"a": "b"})])]
    whole = st.sampled_from(FRAGMENTS + own)
    part = st.tuples(whole, st.integers(1, 40)).map(lambda pair: pair[0][: pair[1]])
    return st.lists(whole | part, max_size=8).map("".join)


@pytest.mark.parametrize("name", SOURCES)
@given(data=st.data(), calls=st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_is_settled_is_a_growing_start_of_the_message(name: str, data: st.DataObject, calls: bool) -> None:
    text = data.draw(fragments(name))
    message = parser(name).message(text, calls=calls, call_id=str)
    whole = (message.extra.get("reasoning_content", ""), message.text)
    before = ("", "")
    for length in range(len(text) + 1):
        settled = parser(name).settled(text[:length], calls=calls)
        assert all(now.startswith(was) for now, was in zip(settled, before, strict=True))
        assert all(end.startswith(now) for end, now in zip(whole, settled, strict=True))
        before = settled


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("object", "Let me see.\n<tool_c", ("", "Let me see.")),
        ("object", "Let me see", ("", "Let me see")),
        ("reasoning", "<think>\nOne and </thi", ("One and", "")),
        ("reasoning", "<think>\nOne\n</think>\n\nYes <b>", ("One", "Yes <b>")),
        ("opened", "One and two", ("One and two", "")),
        ("bare", "No call", ("", "No call")),
        ("bare", '{"name"', ("", "")),
        ("channels", "<|channel|>analysis<|message|>One<|en", ("One", "")),
        (
            "channels",
            "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>final<|message|>Y",
            ("One", "Y"),
        ),
    ],
)
def test_what_can_be_told_is_told_at_once(name: str, text: str, expected: tuple[str, str]) -> None:
    assert parser(name).settled(text, calls=True) == expected


def upper(text: str) -> tuple[str, list[dict[str, str]]]:
    head, found, rest = text.partition("CALL ")
    return (head, [{"name": rest, "arguments": "{}"}]) if found else (text, [])


def test_any_function_parses_calls_and_settles_nothing_without_saying_where_they_start() -> None:
    own = TurnParser(upper)
    message = own.message("Now CALL f", calls=True, call_id="new{}".format)
    assert (message.text, message.tool_calls) == ("Now ", (call("f", "{}", "new0"),))
    assert own.settled("Now", calls=True) == ("", "")
    assert own.settled("Now", calls=False) == ("", "Now")


def test_a_parser_that_says_where_calls_start_settles_what_is_before() -> None:
    class Upper:
        starts = ("CALL ",)

        def __call__(self, text: str) -> tuple[str, list[dict[str, str]]]:
            return upper(text)

    assert TurnParser(Upper()).settled("Now CAL", calls=True) == ("", "Now")


def test_a_parser_of_reasoning_settles_as_far_as_it_says_its_end() -> None:
    class Arrow:
        ends = "=>"

        def __call__(self, text: str) -> tuple[str | None, str]:
            thought, found, rest = text.partition("=>")
            return (thought, rest) if found else (None, text)

    own = TurnParser(None, Arrow())
    assert own.settled("one", calls=False) == ("", "")
    assert own.settled("one=>two", calls=False) == ("one", "two")
    assert TurnParser(None, lambda text: (None, text)).settled("one", calls=False) == ("", "")


@pytest.mark.parametrize(
    "answer", [None, ("a",), ("a", None), ("a", [{"name": "f"}]), ("a", [{"name": "", "arguments": "{}"}]), (1, [])]
)
def test_what_a_parser_of_calls_returns_is_checked(answer: object) -> None:
    def own(text: str) -> object:
        return answer

    with pytest.raises(SessionError, match=r"session.tool_calls: .*own must return"):
        TurnParser(own).message("x", calls=True, call_id=str)  # type: ignore[arg-type]


def test_a_parser_that_raises_is_named() -> None:
    def broken(text: str) -> object:
        raise KeyError("gone")

    with pytest.raises(SessionError, match=r"session.reasoning: .*broken raised KeyError: 'gone'"):
        TurnParser(None, broken).message("x", calls=True, call_id=str)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match=r"session.reasoning: .*must return"):
        TurnParser(None, upper).message("x", calls=True, call_id=str)  # type: ignore[arg-type]
