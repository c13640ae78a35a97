"""At start-up a chat template is proved, or refused before a session is spent on it."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.errors import SessionError
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.startup import check_append_only, describe_sessions
from miles_core.session.tokenizer import ChatTokenizer

from .conversations import CHAT, chat_tokenizer

OPTIONS: dict[str, Any] = {"parser": TurnParser(), "renderer": None, "clock": None}


def test_a_template_that_drops_a_role_is_refused() -> None:
    drops_tool = chat_tokenizer(CHAT.replace("in messages", "in messages if m.role != 'tool'"))
    check_append_only(drops_tool, ["user"])
    with pytest.raises(SessionError, match="cannot append 'tool' messages token by token: .* drops a 'tool' message"):
        check_append_only(drops_tool, ["tool"])
    with pytest.raises(SessionError, match="cannot append 'tool' messages"):
        check_append_only(drops_tool, ["user"], tools=True)


def test_a_model_without_a_stop_token_is_refused() -> None:
    endless = ChatTokenizer(chat_tokenizer().tokenizer, ())
    with pytest.raises(SessionError, match="names no stop token"):
        check_append_only(endless, ["user"])
    with pytest.raises(SessionError, match="names no stop token"):
        describe_sessions("m", endless, OPTIONS)


def test_a_template_that_appends_nothing_is_refused_unless_a_renderer_takes_over() -> None:
    first_only = chat_tokenizer("{{ messages[0].content }}")
    with pytest.raises(SessionError, match=r"(?s)append nothing after a generated turn: user: .* session\.renderer"):
        describe_sessions("m", first_only, OPTIONS)
    said = describe_sessions("m", first_only, {**OPTIONS, "renderer": object()})
    assert "a renderer of your own" in said


def test_what_was_proved_is_shown_and_remembered_for_the_sessions() -> None:
    chat = chat_tokenizer()
    said = describe_sessions("m", chat, OPTIONS)
    assert "append user         yes" in said
    assert "tool calls          stay text" in said
    assert chat.deriver().independence._found
