"""Streams of the scripted engine, read by the run's own client."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

from miles_core.errors import EngineError
from miles_core.testing import ScriptedEngine, ScriptedReply
from miles_core.testing.session import LoopbackClient
from miles_core.testing.toy_tokenizer import toy_tokenizer
from miles_core.types import FinishReason, GenerateRequest, RoutingSpec, SamplingParams

pytestmark = pytest.mark.anyio
TOKENS = [10, 11, 12, 13]


def request_of(**sampling: Any) -> GenerateRequest:
    return GenerateRequest([3, 4], SamplingParams(**sampling), "r")


async def test_a_stream_shows_ids_one_by_one_and_ends_as_the_reply_without_one() -> None:
    routing = RoutingSpec(num_layers=1, layer_ids=(0,), num_experts=4, top_k=2)
    request = GenerateRequest([3, 4], SamplingParams(), "r", return_routed_experts=True)
    got: list[list[int]] = []
    with ScriptedEngine(ScriptedReply(TOKENS), ScriptedReply(TOKENS), routing=routing) as engine:
        client = LoopbackClient(engine, 103)
        streamed = await client.generate(request, on_tokens=lambda ids: got.append(list(ids)))
        whole = await client.generate(request)
    assert got == [[token] for token in TOKENS]
    assert streamed.output_ids.tolist() == whole.output_ids.tolist() == TOKENS
    assert streamed.logprobs.tolist() == whole.logprobs.tolist()
    assert streamed.routed_experts is not None
    assert whole.routed_experts is not None
    assert streamed.routed_experts.tolist() == whole.routed_experts.tolist()
    assert [body.get("stream") for body in engine.requests] == [True, None]


@pytest.mark.parametrize(("aborted", "kept"), [(True, TOKENS[:2]), (False, TOKENS)])
async def test_a_held_stream_shows_half_and_then_ends_or_goes_on(aborted: bool, kept: list[int]) -> None:
    got: list[int] = []
    with ScriptedEngine(ScriptedReply(TOKENS, hold=True)) as engine:

        def show(ids: Any) -> None:
            got.extend(ids)
            if got == TOKENS[:2]:
                (engine.abort if aborted else engine.release)()

        with anyio.fail_after(20):
            found = await LoopbackClient(engine, 103).generate(request_of(), on_tokens=show)
    assert got == found.output_ids.tolist() == kept
    assert found.finish_reason.type == ("abort" if aborted else "stop")


@pytest.mark.parametrize("fails_after", [0, 2, 4, 9])
async def test_a_stream_can_fail_in_the_middle(fails_after: int) -> None:
    got: list[int] = []
    reply = ScriptedReply(TOKENS, fails_after=fails_after, message="out of memory")
    with ScriptedEngine(reply, reply) as engine:
        client = LoopbackClient(engine, 103)
        with pytest.raises(EngineError, match="out of memory"):
            await client.generate(request_of(), on_tokens=got.extend)
        assert got == TOKENS[:fails_after]
        with pytest.raises(EngineError, match="answered 500: out of memory"):
            await client.generate(request_of())


async def test_a_status_refuses_a_stream_before_it_begins() -> None:
    with ScriptedEngine(ScriptedReply(status=503, message="busy")) as engine:
        for message in ("answered 503: busy", "answered 500: request 2 came"):
            with pytest.raises(EngineError, match=message):
                await LoopbackClient(engine, 103).generate(request_of(), on_tokens=lambda ids: None)


async def test_a_stop_text_ends_a_reply_with_the_token_that_completes_it() -> None:
    tokenizer = toy_tokenizer()
    got: list[int] = []
    with ScriptedEngine("one two three", tokenizer=tokenizer) as engine:
        client = LoopbackClient(engine, tokenizer.vocab_size)
        found = await client.generate(request_of(stop=("xyz", "two")), on_tokens=got.extend)
    assert tokenizer.decode(found.output_ids.tolist()) == "one two"
    assert got == found.output_ids.tolist()
    assert found.finish_reason == FinishReason("stop", "two")
