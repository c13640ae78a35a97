"""A session resumes what this engine aborted: the tokens it would have said, routed as the model routes them."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest

from miles_core.engine.client import HttpEngineClient
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import Message, SamplingParams, Status, VersionSpan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from miles_core.kinds.sessions import Turn

pytestmark = pytest.mark.anyio
ASK = [Message("user", "what is c")]
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8)


@pytest.fixture
def open_session(make_engine: Any, served: Any, tokenizer: Any, routing_spec: Any) -> Any:
    """``async with open_session(model) as (session, engine)``; no token stops a turn."""
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = "{% for message in messages %}{{ message.content + ' ' }}{% endfor %}"

    @asynccontextmanager
    async def opened(model: Any, **settings: Any) -> AsyncIterator[tuple[TokenSession, Any]]:
        engine = make_engine(model, **settings)
        async with served(engine) as (url, http):
            client = HttpEngineClient(url, http, vocab_size=40, context_length=128, routing=routing_spec)
            session = TokenSession(
                ChatTokenizer(chat, ()), client, routing_spec, task_id="t", group_id="g", trajectory_id="x"
            )
            yield session, engine

    return opened


async def aborted_turn(session: TokenSession, engine: Any, steps: Any, *, tokens: int) -> Turn:
    """A turn that is aborted in the pass after ``tokens`` tokens, by a pause."""
    turns: list[Turn] = []

    async def generate() -> None:
        turns.append(await session.generate(session.prepare(ASK), GREEDY))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        await steps.at_forward()
        for _ in range(tokens):
            steps.permit()
            await steps.at_forward()
        tasks.start_soon(anyio.to_thread.run_sync, partial(engine.pause, "abort"))
        while not engine._thread._holds:
            await anyio.lowlevel.checkpoint()
        steps.permit()
    steps.open()
    return turns[0]


async def undisturbed(open_session: Any, model: Any) -> Any:
    async with open_session(model) as (session, _):
        await session.generate(session.prepare(ASK), GREEDY)
        return session.samples(status=Status.TRUNCATED)[0]


async def test_a_resumed_turn_is_the_undisturbed_one_and_its_trace_the_models_own(
    open_session: Any, gate: Any, moe: Any, reference: Any
) -> None:
    plain = await undisturbed(open_session, moe)
    async with open_session(moe) as (session, engine):
        stopped = await aborted_turn(session, engine, gate(engine), tokens=3)
        assert stopped.generation.finish_reason.type == "abort"
        assert len(stopped.generation.output_ids) == 4
        engine.resume()
        turn = await session.resume(stopped)
        sample = session.samples(status=Status.TRUNCATED)[0]
    assert turn.generation.finish_reason.type == "length"
    assert sample.tokens.tolist() == plain.tokens.tolist()
    np.testing.assert_allclose(sample.logprobs, plain.logprobs, atol=1e-5)
    assert sample.versions == plain.versions
    np.testing.assert_array_equal(sample.routing.experts, reference(moe, sample.tokens.tolist()).routing[:-1])


async def test_a_turn_resumed_by_new_weights_has_two_spans_and_keeps_the_rows_of_the_old(
    open_session: Any, gate: Any, own_moe: Any, reference: Any
) -> None:
    async with open_session(own_moe) as (session, engine):
        stopped = await aborted_turn(session, engine, gate(engine), tokens=2)
        partial_ids = session.tree.nodes[0].tokens().tolist()
        old = reference(own_moe, partial_ids).routing[:-1]
        with engine.exclusive():
            for tensor in engine.parameters().values():
                tensor.mul_(1.1)
        engine.commit_version(5)
        engine.resume()
        turn = await session.resume(stopped)
        sample = session.samples(status=Status.TRUNCATED)[0]
    assert turn.generation.versions == (VersionSpan(0, 0, 3), VersionSpan(5, 3, 8))
    assert sample.tokens[: len(partial_ids)].tolist() == partial_ids
    new = reference(own_moe, sample.tokens.tolist()).routing[:-1]
    assert (new[: len(old)] != old).any()
    np.testing.assert_array_equal(sample.routing.experts, np.concatenate([old, new[len(old) :]]))


async def test_a_turn_aborted_in_the_queue_starts_over(open_session: Any, gate: Any, moe: Any, reference: Any) -> None:
    async with open_session(moe, max_running_requests=1) as (session, engine):
        steps = gate(engine)
        turns: list[Turn] = []

        async def generate() -> None:
            turns.append(await session.generate(session.prepare(ASK), GREEDY))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            await steps.at_forward()
            tasks.start_soon(generate)
            while engine.load()["num_requests"] < 2:
                await anyio.lowlevel.checkpoint()
            engine.abort("x-1.")
            steps.open()
        [stopped] = [turn for turn in turns if turn.generation.finish_reason.type == "abort"]
        assert len(stopped.generation.output_ids) == 0
        turn = await session.resume(stopped)
        sample = session.samples(status=Status.TRUNCATED)[0]
    assert len(turn.generation.output_ids) == 8
    np.testing.assert_array_equal(sample.routing.experts, reference(moe, sample.tokens.tolist()).routing[:-1])
