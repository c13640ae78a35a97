"""The first sessions of a step are audited when it ends, and no others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from miles_core.app.session_audit import SessionAudit
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import FinishReason, GenerateRequest, Generation, Message, SamplingParams, VersionSpan

pytestmark = pytest.mark.anyio
MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"


class Engine:
    """Says "c" and stops."""

    def __init__(self, chat: ChatTokenizer) -> None:
        self._ids = np.array([*chat.encode("c"), *chat.stop_token_ids[:1]], np.int32)

    async def generate(self, request: GenerateRequest) -> Generation:
        ids = self._ids
        return Generation(ids, np.zeros(len(ids), np.float32), FinishReason("stop"), (VersionSpan(0, 0, len(ids)),))


async def two_turns(session: TokenSession) -> None:
    messages = [Message("user", "c?")]
    for shown in ("2", None):
        turn = await session.generate(session.prepare(messages), SamplingParams(max_new_tokens=8))
        messages += [turn.message, Message("tool", shown or "")]


class NoSeparator:
    """Forgets what stands between an answer and the next message."""

    def __init__(self, inner) -> None:
        self.prompt, self._boundary = inner.prompt, inner.boundary

    def boundary(self, turn, appended):
        return self._boundary(turn, appended)[1:]


@pytest.mark.parametrize("faulty", [False, True])
async def test_a_step_reports_the_sessions_that_were_opened_first_in_it(faulty: bool) -> None:
    chat = ChatTokenizer.load(MODEL)
    audit = SessionAudit(2, chat)
    made = partial(TokenSession, chat, Engine(chat), None, task_id="t", group_id="g")
    open_session = audit.watched(made)
    open_session(trajectory_id="crashed before it spoke")
    for number in range(3):
        session = open_session(trajectory_id=f"x{number}")
        if faulty:
            session.renderer = NoSeparator(session.renderer)
        await two_turns(session)
    metrics = audit.metrics()
    assert metrics["session/audit/conversations"] == 2
    assert metrics["session/audit/other_text"] == (2 if faulty else 0)
    assert metrics["session/audit/special_tokens"] == metrics["session/audit/assistant_text"] == 0
    open_session(trajectory_id="y")
    assert audit.metrics() == {}, "a session without turns, in a new step"
