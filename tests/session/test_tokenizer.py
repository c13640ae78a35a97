"""The tokenizer: what it remembers is what it would make again."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.errors import SessionError
from miles_core.session.template.ids import IdDeriver
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import ImagePart, Message, TextPart


class Counted:
    """A real tokenizer that counts its calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.encodes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, *arguments: Any, **options: Any) -> Any:
        self.encodes += 1
        return self._tokenizer.encode(*arguments, **options)


@pytest.fixture
def counted(chat: ChatTokenizer) -> tuple[ChatTokenizer, Counted]:
    counter = Counted(chat.tokenizer)
    return ChatTokenizer(counter, chat.stop_token_ids), counter


@pytest.fixture
def fresh(chat: ChatTokenizer) -> ChatTokenizer:
    """One that remembers nothing yet."""
    return ChatTokenizer(chat.tokenizer, chat.stop_token_ids)


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was derived from the template, and not remembered."""
    names: list[str] = []
    for name in ("prompt", "boundary"):
        real = getattr(IdDeriver, name)

        def counting(self: IdDeriver, *arguments: Any, name: str = name, real: Any = real) -> Any:
            names.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(IdDeriver, name, counting)
    return names


def test_a_groups_members_derive_their_prompt_once(fresh: ChatTokenizer, derived: list[str]) -> None:
    question = Message("user", "value of c?")
    made = [TemplateRenderer(fresh).prompt([question]) for _ in range(16)]
    assert derived == ["prompt"]
    made[0].append(7)
    assert made[1] == made[2] == TemplateRenderer(fresh).prompt([question])


def test_conversations_that_differ_anywhere_are_told_apart(fresh: ChatTokenizer) -> None:
    conversations = [
        [Message("user", "a")],
        [Message("tool", "a")],
        [Message("user", "ab")],
        [Message("user", "a"), Message("user", "b")],
        [Message("user", "a", name="b")],
        [Message("user", "a", tool_call_id="b")],
    ]
    keys = [(messages, key) for messages in conversations for key in ("prompt", (1, 2))]
    for number, (messages, key) in enumerate(keys):
        assert fresh.remembered(messages, key, lambda number=number: [number]) == [number]


@pytest.mark.parametrize(
    "message",
    [
        Message("user", (TextPart("a"),)),
        Message("user", (ImagePart("a.png"),)),
        Message("assistant", "a", tool_calls=({"name": "get"},)),
        Message("user", "a", extra={"weight": 1}),
    ],
)
def test_a_message_of_more_than_text_is_derived_every_time(message: Message, fresh: ChatTokenizer) -> None:
    for number in range(2):
        assert fresh.remembered([message], "prompt", lambda number=number: [number]) == [number]


def test_tools_are_part_of_a_prompt(fresh: ChatTokenizer, derived: list[str]) -> None:
    for tools in ([], [{"name": "get"}], [{"name": "put"}], [{"name": "get"}]):
        TemplateRenderer(fresh).prompt([Message("user", "a")], tools)
    assert derived == ["prompt"] * 3


def test_a_text_is_encoded_once_and_one_that_cannot_be_fails_every_time(
    counted: tuple[ChatTokenizer, Counted],
) -> None:
    tokenizer, counter = counted
    assert tokenizer.encode("value of c?") == tokenizer.encode("value of c?")
    assert counter.encodes == 1
    for _ in range(2):
        with pytest.raises(SessionError, match="cannot encode"):
            tokenizer.encode("\ud800")
    assert counter.encodes == 3
