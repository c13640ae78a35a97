"""Token in, token out: what was generated is kept, and only what is new is tokenized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import ConfigError, SessionError
from miles_core.session.tito import TokenInTokenOut, check_append_only
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import Message

IM_END = 2
# Characters of the tokenizer, and words that look like the template's own text.
CONTENT = st.one_of(
    st.sampled_from(["im", "end", "im_end", "tool", "user", "assistant", "\n", "<", "|>", "qSENTINEL"]),
    st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8),
)


@contextmanager
def template(chat: ChatTokenizer, text: str) -> Iterator[ChatTokenizer]:
    before = chat.tokenizer.chat_template
    chat.tokenizer.chat_template = text
    try:
        yield chat
    finally:
        chat.tokenizer.chat_template = before


def test_a_stopped_turn_continues_with_the_separator_and_without_a_second_stop_token(chat: ChatTokenizer) -> None:
    history = [Message("user", "value of c?"), Message("assistant", "get c")]
    ids = TokenInTokenOut(chat).continuation(history, [Message("tool", "2")], stop=IM_END)
    assert chat.decode(ids) == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_cut_by_length_is_closed_first(chat: ChatTokenizer) -> None:
    history = [Message("user", "value of c?"), Message("assistant", "get c")]
    ids = TokenInTokenOut(chat).continuation(history, [Message("tool", "2")], stop=None)
    assert chat.decode(ids).startswith("<|im_end|>\n<|im_start|>tool")


@settings(max_examples=60, deadline=None)
@given(question=CONTENT, answer=CONTENT, shown=CONTENT, role=st.sampled_from(["user", "tool"]))
def test_pieces_equal_a_fresh_render(chat: ChatTokenizer, question: str, answer: str, shown: str, role: str) -> None:
    messages = [Message("user", question), Message("assistant", answer), Message(role, shown)]
    tito = TokenInTokenOut(chat)
    pieces = tito.initial(messages[:1]) + chat.encode(answer) + [IM_END]
    pieces += tito.continuation(messages[:2], messages[2:], stop=IM_END)
    fresh = [message.to_chat() for message in messages]
    rendered = chat.tokenizer.apply_chat_template(fresh, add_generation_prompt=True, tokenize=False)
    assert chat.decode(pieces) == rendered


def test_the_generated_message_leaves_out_only_the_stop_token_that_ended_it(chat: ChatTokenizer) -> None:
    tito = TokenInTokenOut(chat)
    ids = chat.encode("ab")
    assert tito.message([*ids, IM_END], IM_END).text == "ab"
    assert tito.message(ids, None).text == "ab"


def test_a_template_that_drops_a_role_is_refused_at_start_up(chat: ChatTokenizer) -> None:
    drops_tool = chat.tokenizer.chat_template.replace(
        "{% for message in messages %}", "{% for message in messages if message.role != 'tool' %}"
    )
    with template(chat, drops_tool):
        check_append_only(chat, ["user"])
        with pytest.raises(SessionError, match="'tool' message"):
            check_append_only(chat, ["tool"])


def test_a_template_that_rewrites_history_still_continues(chat: ChatTokenizer) -> None:
    # Hides earlier assistant turns once a later message follows, as reasoning templates do with their thoughts.
    rewrites = chat.tokenizer.chat_template.replace(
        "{{ message['content'] }}",
        "{{ message['content'] | upper if message.role == 'user' and not loop.last else message['content'] }}",
    )
    history = [Message("user", "hi"), Message("assistant", "yo")]
    with template(chat, rewrites):
        ids = TokenInTokenOut(chat).continuation(history, [Message("user", "go")], stop=IM_END)
    assert chat.decode(ids) == "\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_raises_names_the_roles(chat: ChatTokenizer) -> None:
    with (
        template(chat, "{{ raise_exception('roles must alternate') }}"),
        pytest.raises(SessionError, match=r"roles \[user user\].*alternate"),
    ):
        TokenInTokenOut(chat).initial([Message("user", "a"), Message("user", "b")])


def test_a_directory_without_a_tokenizer_is_a_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer in"):
        ChatTokenizer.load(tmp_path)
