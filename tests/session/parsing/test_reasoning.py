"""Reasoning is parted from content at the marks that the chat template writes, or at which it takes texts apart."""

from __future__ import annotations

import pytest

from .chats import CALLS, call, chat, parser_of, read, written

SHOWN = (
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    + CALLS["object"]
)
CUT = "{{ m.content.split('</think>')[-1] }}"
WRAPPED = (
    "{% if m.reasoning_content %}<|THINK|>{{ m.reasoning_content }}<|/THINK|>{% endif %}<|SAY|>{{ m.content }}<|/SAY|>"
)


def parted(source: str, text: str, **variables: object) -> tuple[str | None, str]:
    message = parser_of(source, **variables).message(text, calls=True, call_id="new{}".format)
    return message.extra.get("reasoning_content"), message.text


def test_a_turn_is_parted_at_the_marks_of_the_template() -> None:
    text = written(chat(SHOWN), content="Yes.", reasoning_content="One\n\ntwo ")
    assert text == "<think>\nOne\n\ntwo \n</think>\n\nYes."
    assert parted(chat(SHOWN), text) == ("One\n\ntwo ", "Yes.")
    assert parted(chat(SHOWN), "\n" + text) == ("One\n\ntwo ", "Yes.")


def test_only_the_white_space_of_the_template_is_taken() -> None:
    assert parted(chat(SHOWN), "<think>\n\n One \n\n</think>\n\n\n Yes. ") == ("\n One \n", "\n Yes. ")
    assert parted(chat(SHOWN), "<think>One</think>Yes.") == ("One", "Yes.")


def test_what_the_prompt_has_opened_needs_no_mark() -> None:
    source = chat(SHOWN, prompt="<think>\n")
    assert parted(source, "One\n</think>\n\nYes.") == ("One", "Yes.")
    assert parted(source, "\nOne\n</think>\n\nYes.") == ("\nOne", "Yes.")
    assert parted(chat(SHOWN, prompt="<think>"), "\nOne\n</think>\n\nYes.") == ("One", "Yes.")


def test_a_turn_that_is_cut_is_all_reasoning_where_it_is_open() -> None:
    assert parted(chat(SHOWN, prompt="<think>\n"), "One </thi") == ("One </thi", "")
    assert parted(chat(SHOWN), "<think>\nOne\n") == ("One\n", "")


def test_a_turn_that_opens_nothing_is_all_content() -> None:
    for text in ("Yes.", "A <think> in a text</think>.", "No </think>"):
        assert parted(chat(SHOWN), text) == (None, text)


@pytest.mark.parametrize("text", ["</think>\n\nYes.", "<think>\n\n</think>\n\nYes.", "<think></think>\n\nYes."])
def test_an_empty_block_is_no_reasoning(text: str) -> None:
    assert parted(chat(SHOWN), text) == (None, "Yes.")


def test_a_switch_decides_whether_the_prompt_has_opened_it() -> None:
    source = chat(
        SHOWN, prompt="{% if thinking is defined and thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    )
    assert parted(source, "Yes.") == (None, "Yes.")
    assert parted(source, "One\n</think>\n\nYes.", thinking=True) == ("One", "Yes.")


def test_marks_are_found_where_the_template_only_takes_texts_apart() -> None:
    assert parted(chat(CUT, prompt="<think>\n"), "One\n</think>\n\nYes.") == ("One", "Yes.")
    assert parted(chat(CUT), "<think>One</think>Yes.") == ("One", "Yes.")


def test_marks_are_found_in_the_empty_block_of_a_switch() -> None:
    prompt = "{% if thinking is defined and not thinking %}<think>\n\n</think>\n{% endif %}"
    assert parted(chat("{{ m.content }}", prompt=prompt), "<think>\nOne\n</think>\nYes.") == ("One", "Yes.")


def test_marks_around_the_content_are_no_content() -> None:
    assert parted(chat(WRAPPED), "<|THINK|>One<|/THINK|><|SAY|>Yes.<|/SAY|>") == ("One", "Yes.")
    assert parted(chat(WRAPPED), "<|SAY|>Yes.") == (None, "Yes.")


def test_space_that_the_template_writes_before_a_content_is_not_content() -> None:
    source = chat("{{ ' ' + m.content }}")
    assert parted(source, " Yes. ") == (None, "Yes. ")
    assert parted(source, "Yes.") == (None, "Yes.")


def test_reasoning_as_a_part_of_the_content_is_found() -> None:
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' else p.text }}{% endfor %}{% endif %}"
    )
    assert parted(chat(parts), "[THINK]One[/THINK]Yes.") == ("One", "Yes.")


def test_calls_are_read_behind_reasoning_and_not_in_it() -> None:
    text = written(chat(SHOWN), content="", reasoning_content="One", tool_calls=[call("look", {"a": 1})])
    parser = parser_of(chat(SHOWN))
    assert read(parser, text) == ("", [("look", {"a": 1})])
    inside = '<think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert read(parser, inside) == ("", [])
    assert parted(chat(SHOWN), inside)[0] == inside.removeprefix("<think>\n")


def test_a_template_that_shows_no_reasoning_has_no_marks() -> None:
    assert parser_of(chat("{{ m.content }}")).reasoning is None
    assert parted(chat("{{ m.content }}"), "<think>One</think>Yes.") == (None, "<think>One</think>Yes.")


def test_a_history_that_keeps_reasoning_gives_the_text_again() -> None:
    for text in ("<think>\n a\n\n</think>\n\n b ", "<think>\na\n</think>\n\nYes.\n<tool_call>\n"):
        reasoning, content = parted(chat(SHOWN), text)
        assert written(chat(SHOWN), content=content, reasoning_content=reasoning) == text
