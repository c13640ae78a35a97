"""Turns of several messages: thoughts, calls and answers have headers of their own."""

from __future__ import annotations

from .chats import parser_of, read

SOURCE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"
    "{% endif %}"
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ f.name }}"
    "<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
PARSER = parser_of(SOURCE)
THOUGHT = "<|channel|>analysis<|message|>One<|end|><|start|>assistant"


def parted(text: str) -> tuple[str | None, str]:
    message = PARSER.message(text, calls=True, call_id="new{}".format)
    return message.extra.get("reasoning_content"), message.text


def test_thoughts_and_answers_are_parted() -> None:
    assert parted(THOUGHT + "<|channel|>final<|message|>Yes.") == ("One", "Yes.")
    assert parted("<|channel|>final<|message|>Yes.<|end|>") == (None, "Yes.")
    assert parted("<|channel|>analysis<|message|>One") == ("One", "")
    assert parted("no header") == (None, "no header")


def test_a_call_is_read_wherever_its_header_names_it() -> None:
    for header in (
        " to=functions.look<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>",
    ):
        for end in ("<|call|>", ""):
            assert read(PARSER, THOUGHT + header + '{"a": "<|end"}' + end) == ("", [("look", {"a": "<|end"})])
            assert read(PARSER, header + '{"a": 1}' + end) == ("", [("look", {"a": 1})])


def test_what_is_said_before_a_call_is_content() -> None:
    text = (
        "<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    )
    assert read(PARSER, text) == ("I look.", [("look", {"a": 1})])


def test_a_broken_call_stays_text() -> None:
    call = '<|channel|>commentary to=functions.look<|message|>{"a": 1'
    assert read(PARSER, call) == (call, [])
    assert read(PARSER, call + "}", calls=False) == (call + "}", [])


def test_a_header_that_is_not_over_stays_text() -> None:
    assert parted(THOUGHT + "<|channel|>fin") == ("One", "<|start|>assistant<|channel|>fin")
