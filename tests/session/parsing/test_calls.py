"""Calls are read in whatever form the chat template writes them."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.session.parsing.json_text import NotJsonError, value_at
from miles_core.session.parsing.turn import TurnParser

from .chats import CALLS, HIDDEN, call, calling, chat, parser_of, read, written

FORMS = [form for form in CALLS if form != "named by id"]
NASTY = ['{"a": 1}', "</tool_call>", "<call>", "it's", 'say "hi"', "a\nb", "ünï 漢字 🎉", "\\n", "}}", "```", ""]

names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,10}", fullmatch=True)
keys = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
texts = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
plain = st.one_of(st.booleans(), st.none(), st.integers(-1000, 1000), st.floats(-100, 100, width=16))
nested = st.recursive(plain | texts, lambda each: st.lists(each, max_size=3) | st.dictionaries(keys, each, max_size=3))
arguments = st.dictionaries(keys, nested, max_size=3)
contents = st.sampled_from(["", "Let me see.", "first\nsecond"])


@cache
def parser(form: str) -> TurnParser:
    return parser_of(calling(form))


def bare(arguments: object) -> bool:
    """Whether a form that writes text without quotes can tell these arguments from others."""

    def told(value: object) -> bool:
        if not isinstance(value, str):
            return True
        try:
            value_at(value.strip(), 0)
        except NotJsonError:
            return "</" not in value
        return False

    return isinstance(arguments, dict) and all(map(told, arguments.values()))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "nested elements"])
@given(calls=st.lists(st.tuples(names, arguments), min_size=1, max_size=3), content=contents)
@settings(max_examples=25, deadline=None)
def test_what_the_template_writes_is_read_back(
    form: str, calls: list[tuple[str, dict[str, object]]], content: str
) -> None:
    if form == "elements":
        calls = [each for each in calls if bare(each[1])]
    if form == "quotes":
        calls = [each for each in calls if '<|"|>' not in json.dumps(each[1])]
    turn = [call(name, given, f"abcdefgh{index}") for index, (name, given) in enumerate(calls)]
    text = written(calling(form), content=content, tool_calls=turn)
    assert read(parser(form), text) == (content, calls)


@pytest.mark.parametrize("form", FORMS)
def test_white_space_around_json_and_markers_is_free(form: str) -> None:
    text = written(calling(form), content="", tool_calls=[call("look", {"a": 1})])
    for changed in (text.replace("\n", "\n\n"), text.replace("<|call", "\n<|call"), text + "\n", "\n" + text):
        assert read(parser(form), changed) == ("", [("look", {"a": 1})])


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_that_is_cut_or_broken_stays_text(form: str) -> None:
    text = written(calling(form), content="Yes.", tool_calls=[call("look", {"a": "b", "c": [1]})] * 2)
    start = text.index("look")
    broken_json = [] if "elements" in form else [text.replace("[1", "[1 2", 1)]  # there it is a text
    for broken in (text[:-3], text[: start + 6], text.replace("look", "", 1), *broken_json):
        assert read(parser(form), broken) == (broken, [])


def test_nothing_is_mended() -> None:
    for broken in ("{'name': 'f', 'arguments': {}}", '{"name": "f", "arguments": {"a": NaN}}', '{"name": "f"}'):
        text = f"<tool_call>\n{broken}\n</tool_call>"
        assert read(parser("object"), text) == (text, [])
    text = '<tool_call>\n{"name": "f", "arguments": {}, "also": 1}\n</tool_call>'
    assert read(parser("object"), text) == (text, [])


def test_one_broken_call_among_several_leaves_the_whole_text() -> None:
    good = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for text in (good + "\n<tool_call>\n{broken}\n</tool_call>", "<tool_call>\n{\n" + good):
        assert read(parser("object"), text) == (text, [])


def test_arguments_are_the_text_that_the_model_wrote() -> None:
    text = '<tool_call>\n{"arguments": {"a":1.0,  "b": "\\u00e9"}, "name": "f"}\n</tool_call>'
    message = parser("object").message(text, calls=True, call_id="new{}".format)
    assert message.tool_calls[0]["function"]["arguments"] == '{"a":1.0,  "b": "\\u00e9"}'


def test_text_before_and_behind_calls_is_content() -> None:
    text = 'One.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nTwo.'
    assert read(parser("object"), text) == ("One.\nTwo.", [("f", {})])


def test_only_the_white_space_of_the_template_is_taken_from_the_content() -> None:
    text = '  One.\n\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert read(parser("object"), text)[0] == "  One.\n\n"


def test_identifiers_that_the_model_wrote_are_kept() -> None:
    turn = [call("look", {"a": 1}, "abcdefgh7"), call("see", {}, "abcdefgh8")]

    def identifiers(form: str, text: str) -> list[str]:
        message = parser(form).message(text, calls=True, call_id="new{}".format)
        return [each["id"] for each in message.tool_calls]

    text = written(calling("list"), content="", tool_calls=turn)
    assert identifiers("list", text) == ["abcdefgh7", "abcdefgh8"]
    assert identifiers("list", text.replace(', "id": "abcdefgh8"', "")) == ["abcdefgh7", "new1"]
    text = written(calling("numbered"), content="", tool_calls=turn)
    assert identifiers("numbered", text) == ["functions.look:0", "functions.see:1"]
    text = written(calling("object"), content="", tool_calls=turn)
    assert identifiers("object", text) == ["new0", "new1"]


def test_a_name_is_taken_from_an_identifier_where_the_template_writes_no_name() -> None:
    text = "<|call|>functions.look_up:3<|args|>{}<|/call|>"
    message = parser("named by id").message(text, calls=True, call_id="new{}".format)
    assert message.tool_calls == (call("look_up", "{}", "functions.look_up:3"),)


def test_a_bare_object_is_a_call_only_if_it_is_the_whole_text() -> None:
    bare_parser = parser_of(chat(HIDDEN))
    text = '{"name": "f", "arguments": {"a": [1]}}'
    assert read(bare_parser, f"\n{text} ") == ("", [("f", {"a": [1]})])
    for other in (f"Use {text}", f"{text} is it", '{"a": 1}'):
        assert read(bare_parser, other) == (other, [])


def test_a_close_that_is_the_stop_token_may_be_missing() -> None:
    """A template that writes nothing behind the close of calls lets the turn end with it."""
    source = calling("keyed").replace("<|im_end|>\n", "").replace("<|im_start|>", "\n<|im_start|>")
    assert read(parser_of(source), '<|calls|>[{"f": {"a": 1}}]') == ("", [("f", {"a": 1})])
    assert read(parser("keyed"), '<|calls|>[{"f": {"a": 1}}]') == ('<|calls|>[{"f": {"a": 1}}]', [])


def test_elements_hold_text_bare_and_other_values_as_json() -> None:
    members = (("a", '"b"'), ("c", "[1]"), ("d", " x\n"))
    text = "<call>f\n" + "".join(f"<key>{key}</key>\n<value>{value}</value>\n" for key, value in members) + "</call>"
    assert read(parser("elements"), text) == ("", [("f", {"a": '"b"', "c": [1], "d": " x\n"})])


def test_lists_and_objects_of_elements_are_read() -> None:
    given = {"a": [1, [2, {"b": "c"}]], "d": {"e": "f", "g": True}, "h": "x"}
    text = written(calling("nested elements"), content="", tool_calls=[call("look", given)])
    assert read(parser("nested elements"), text) == ("", [("look", given)])
    for broken in (text.replace("<e>f</e>", "<g>f</g>"), text.replace("</d>", ""), text.replace("</each></a>", "</a>")):
        assert read(parser("nested elements"), broken) == (broken, [])
    deep = f'<call name="f">{"<a>" * 20_000}</call>'
    assert read(parser("nested elements"), deep) == (deep, [])


def test_an_argument_given_twice_is_no_call() -> None:
    for form, text in (
        ("elements", "<call>f\n<key>a</key>\n<value>1</value>\n<key>a</key>\n<value>2</value>\n</call>"),
        ("python", "<|calls|>[f(a=1, a=2)]<|/calls|>"),
        ("object", '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>'),
    ):
        assert read(parser(form), text) == (text, [])


def test_python_values_are_read() -> None:
    text = "<|calls|>[f(a='it\\'s', b=True, c={'k': [None, 1.5]}, d=\"x, y=)\"), g()]<|/calls|>"
    expected = [("f", {"a": "it's", "b": True, "c": {"k": [None, 1.5]}, "d": "x, y=)"}), ("g", {})]
    assert read(parser("python"), text) == ("", expected)


def test_calls_stay_text_where_they_are_not_asked_for_or_not_known() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert read(parser("object"), text, calls=False) == (text, [])
    assert read(parser_of(chat("{{ m.content }}")), text) == (text, [])


def test_half_a_character_is_no_call() -> None:
    for form, text in (
        ("object", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("python", "<|calls|>[f(a='\\ud800')]<|/calls|>"),
    ):
        assert read(parser(form), text) == (text, [])


def test_deep_nesting_is_text_and_no_crash() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 50_000 + "</tool_call>"
    assert read(parser("object"), text) == (text, [])
    text = "<|calls|>[f(a=" + "[" * 50_000
    assert read(parser("python"), text) == (text, [])
