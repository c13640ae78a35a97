"""``[session] renderer``: somebody else's code writes the tokens, and what it returns is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from miles_core.errors import SessionError
from miles_core.session.rendering import RendererError, own_renderer
from miles_core.session.session import TokenSession
from miles_core.types import Message, SamplingParams

from .test_session import ScriptedEngine

pytestmark = pytest.mark.anyio
ASKED = [Message("user", "c?")]


class Bare:
    """No template at all: contents, each after one token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, messages, tools):
        return [token for message in messages for token in (5, *self._tokenizer.encode(message.text))]

    def boundary(self, turn, appended):
        closing = [] if turn.stop is not None else [7]
        return np.array(closing + self.prompt(appended, turn.tools))


async def test_its_ids_are_the_prompts_and_stored_ones_are_kept(chat) -> None:
    engine = ScriptedEngine(chat, "get c", "2")
    renderer = own_renderer(Bare, "test:Bare", chat)
    session = TokenSession(chat, engine, None, task_id="t", group_id="g", trajectory_id="x", renderer=renderer)
    first = await session.generate(session.prepare(ASKED), SamplingParams())
    await session.generate(session.prepare([*ASKED, first.message, Message("tool", "2")]), SamplingParams())
    asked = [5, *chat.encode("c?")]
    assert list(engine.requests[0].input_ids) == asked
    assert list(engine.requests[1].input_ids) == [*asked, *chat.encode("get c"), 2, 5, *chat.encode("2")]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (lambda self, messages, tools: 1 / 0, "test:X.prompt\\(\\) raised ZeroDivisionError"),
        (lambda self, messages, tools: "text", "must return token ids below [0-9]+; got 'text'"),
        (lambda self, messages, tools: [1, 10**6], "must return token ids below"),
        (lambda self, messages, tools: [1.5], "must return token ids below"),
        (lambda self, messages, tools: [[1], [2, 3]], "must return token ids below"),
        (lambda self, messages, tools: [-1], "must return token ids below"),
        (lambda self, messages, tools: [], "returned no ids"),
        (lambda self, messages, tools: None, "must return token ids below"),
    ],
)
def test_what_it_returns_must_be_ids(chat, prompt, message: str) -> None:
    renderer = own_renderer(type("X", (Bare,), {"prompt": prompt}), "test:X", chat)
    with pytest.raises(RendererError, match=message):
        renderer.prompt(ASKED, ())


async def test_one_that_is_broken_is_not_hidden_by_another_branch(chat) -> None:
    renderer = own_renderer(type("X", (Bare,), {"boundary": lambda self, turn, appended: 1 / 0}), "test:X", chat)
    engine = ScriptedEngine(chat, "get c")
    session = TokenSession(chat, engine, None, task_id="t", group_id="g", trajectory_id="x", renderer=renderer)
    first = await session.generate(session.prepare(ASKED), SamplingParams())
    with pytest.raises(RendererError, match="raised ZeroDivisionError"):
        session.prepare(
            [*ASKED, first.message, Message("user", "d?"), Message("assistant", "3"), Message("user", "e?")]
        )


def test_it_must_be_made_and_have_both_methods(chat) -> None:
    with pytest.raises(SessionError, match="session.renderer = 'test:X' raised TypeError"):
        own_renderer(lambda: None, "test:X", chat)
    with pytest.raises(SessionError, match="has no prompt\\(\\)") as raised:
        own_renderer(lambda tokenizer: object(), "test:X", chat)
    assert "boundary(turn, appended)" in str(raised.value)
