"""The tokenizer: what it remembers is what it would make again."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.errors import SessionError
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import ImagePart, Message, TextPart


class Counted:
    """A real tokenizer that counts its calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.renders = self.encodes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
        self.renders += 1
        return self._tokenizer.apply_chat_template(*arguments, **options)

    def encode(self, *arguments: Any, **options: Any) -> Any:
        self.encodes += 1
        return self._tokenizer.encode(*arguments, **options)


@pytest.fixture
def counted(chat: ChatTokenizer) -> tuple[ChatTokenizer, Counted]:
    counter = Counted(chat.tokenizer)
    return ChatTokenizer(counter, chat.stop_token_ids), counter


def test_a_groups_members_render_and_encode_their_prompt_once(counted: tuple[ChatTokenizer, Counted]) -> None:
    tokenizer, counter = counted
    made = []
    for _ in range(16):
        text = tokenizer.render([Message("user", "value of c?")], add_generation_prompt=True)
        made.append(tokenizer.encode(text))
    assert (counter.renders, counter.encodes) == (1, 1)
    made[0].append(7)
    assert made[1] == made[2] == tokenizer.encode(text)


def test_conversations_that_differ_anywhere_are_told_apart(counted: tuple[ChatTokenizer, Counted]) -> None:
    tokenizer, counter = counted
    conversations = [
        [Message("user", "a")],
        [Message("tool", "a")],
        [Message("user", "ab")],
        [Message("user", "a"), Message("user", "b")],
        [Message("user", "a", name="b")],
        [Message("user", "a", tool_call_id="b")],
    ]
    for messages in conversations:
        for prompt in (True, False):
            tokenizer.render(messages, add_generation_prompt=prompt)
    assert counter.renders == 2 * len(conversations)


@pytest.mark.parametrize(
    "message",
    [
        Message("user", (TextPart("a"),)),
        Message("user", (ImagePart("a.png"),)),
        Message("assistant", "a", tool_calls=({"name": "get"},)),
        Message("user", "a", extra={"weight": 1}),
    ],
)
def test_a_message_of_more_than_text_is_rendered_every_time(
    message: Message, counted: tuple[ChatTokenizer, Counted]
) -> None:
    tokenizer, counter = counted
    for _ in range(2):
        tokenizer.render([message], add_generation_prompt=False)
    assert counter.renders == 2


def test_a_text_that_cannot_be_encoded_fails_every_time(counted: tuple[ChatTokenizer, Counted]) -> None:
    tokenizer, counter = counted
    for _ in range(2):
        with pytest.raises(SessionError, match="cannot encode"):
            tokenizer.encode("\ud800")
    assert counter.encodes == 2
