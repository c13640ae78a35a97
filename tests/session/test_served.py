"""A session that only clients continue: what they ask for, within what context and session leave."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.errors import BudgetSpent, EngineError
from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.served import ClientSession
from miles_core.session.session import TokenSession
from miles_core.types import Message

from .test_session import ScriptedEngine

pytestmark = pytest.mark.anyio
ASKED = [Message("user", "value of c?")]
PROMPT = 19
"""Tokens of the prompt that asks."""


@pytest.fixture
def serve(chat):
    def make(*texts: str, finish: str = "stop", **options: Any) -> tuple[ClientSession, ScriptedEngine]:
        engine = ScriptedEngine(chat, *texts, finish=finish)
        session = TokenSession(chat, engine, None, task_id="t", group_id="g", trajectory_id="x")
        return ClientSession(session, **{"context_length": 100, "max_tokens": 1000, **options}), engine

    return make


@pytest.mark.parametrize(
    ("options", "asked", "got"),
    [
        ({}, None, 100 - PROMPT),
        ({}, 50, 50),
        ({"context_length": PROMPT + 10}, 50, 10),
        ({"fixed": SamplingRequest(max_new_tokens=7)}, 50, 7),
        ({"fixed": SamplingRequest(max_new_tokens=7)}, None, 7),
        ({"max_tokens": PROMPT + 3}, 50, 3),
    ],
)
async def test_a_request_gets_what_is_left_and_no_more_than_it_asks_for(serve, options, asked, got: int) -> None:
    served, engine = serve("ok", **options)
    prompt = served.prepare(ASKED, ())
    assert len(prompt.input_ids) == PROMPT, "what the figures count on"
    await served.generate(prompt, SamplingRequest(max_new_tokens=asked))
    assert engine.requests[0].sampling.max_new_tokens == got


async def test_what_the_session_was_opened_with_wins(serve) -> None:
    served, engine = serve("ok", "ok", fixed=SamplingRequest(temperature=0.7, seed=3))
    wanted = SamplingRequest(temperature=0.0, seed=9, stop=("end",), json_schema="{}")
    for _ in range(2):
        await served.generate(served.prepare(ASKED, ()), wanted)
    assert engine.requests[1].sampling.sampling_seed == 4, "a retry is another draw"
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.sampling_seed) == (0.7, 3)
    assert (sampling.stop, sampling.json_schema) == (("end",), "{}")


async def test_greedy_may_be_asked_for(serve) -> None:
    served, engine = serve("ok")
    await served.generate(served.prepare(ASKED, ()), SamplingRequest(temperature=0.0))
    assert engine.requests[0].sampling.temperature == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_length": PROMPT}, "has 19 tokens; the model's context has 19"),
        ({"max_tokens": PROMPT}, "19 tokens would be added to the 0 that"),
    ],
)
async def test_where_nothing_is_left_the_request_is_refused_and_nothing_sent(serve, options, message: str) -> None:
    served, engine = serve("ok", **options)
    with pytest.raises(BudgetSpent, match=message):
        await served.generate(served.prepare(ASKED, ()), SamplingRequest())
    assert engine.requests == []


async def test_an_aborted_turn_is_an_error_and_not_stored(serve) -> None:
    served, _ = serve("ok", finish="abort")
    with pytest.raises(EngineError, match="aborted the turn"):
        await served.generate(served.prepare(ASKED, ()), SamplingRequest())
    assert served.session.tree.nodes == []
    assert served.session.tree.tokens == 0


async def test_turns_in_flight_count_with_all_that_they_may_add(serve, chat) -> None:
    served, engine = serve("ok", "ok", max_tokens=PROMPT + 20)
    answer = engine.generate
    refused: list[object] = []

    async def generate(request):
        if not refused:
            with pytest.raises(BudgetSpent, match=f"added to the {PROMPT + 20} that the session keeps, or may soon"):
                await served.generate(served.prepare(ASKED, ()), SamplingRequest())
            refused.append(request)
        return await answer(request)

    engine.generate = generate
    await served.generate(served.prepare(ASKED, ()), SamplingRequest())
    assert len(refused) == len(served.session.tree.nodes) == 1


async def test_an_engine_that_says_nothing_has_failed(serve) -> None:
    served, _ = serve("", finish="length")
    with pytest.raises(EngineError, match="generated no token"):
        await served.generate(served.prepare(ASKED, ()), SamplingRequest())


async def test_what_cannot_fit_is_refused_before_it_is_tokenized(serve, monkeypatch) -> None:
    served, _ = serve("ok")
    monkeypatch.setattr(served.session, "renderer", None)  # asking it would fail
    with pytest.raises(BudgetSpent, match="have 200000 characters, too many for the 100 tokens"):
        served.prepare([Message("user", "a" * 200_000)], ())
