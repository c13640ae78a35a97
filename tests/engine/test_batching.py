"""Requests of one moment: joined on the wire, apart in everything else."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from miles_core.engine.batching import BatchingClient
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, EngineRequestError, MilesError
from miles_core.types import GenerateRequest, Generation, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from miles_core.types import RoutingSpec

pytestmark = pytest.mark.anyio


def request_of(number: int, ids: Sequence[int] = (3,), *, start: int | None = None, new: int = 4) -> GenerateRequest:
    sampling = SamplingParams(max_new_tokens=new, sampling_seed=number)
    return GenerateRequest(ids, sampling, f"r{number}", start is not None, start or 0)


async def outcomes(client: Any, requests: Sequence[GenerateRequest]) -> list[Generation | MilesError]:
    """What becomes of requests that are made at the same moment."""
    found: dict[int, Generation | MilesError] = {}

    async def one(index: int) -> None:
        try:
            found[index] = await client.generate(requests[index])
        except MilesError as error:
            found[index] = error

    async with anyio.create_task_group() as tasks:
        for index in range(len(requests)):
            tasks.start_soon(one, index)
    return [found[index] for index in range(len(requests))]


def reply_to(rid: str, ids: Sequence[int], **meta: Any) -> dict[str, Any]:
    """A reply whose first output repeats the prompt's first id, and whose second is how long the prompt was."""
    outputs = [ids[0], len(ids)]
    logprobs = [[-0.5, token, None] for token in outputs]
    full = {"id": rid, "finish_reason": {"type": "length"}, "weight_version": "1", "output_token_logprobs": logprobs}
    return {"output_ids": outputs, "meta_info": {**full, **meta}}


def answers(body: Any) -> Any:
    """As an engine: one reply for one prompt, a list for a list."""
    if isinstance(body["rid"], str):
        return reply_to(body["rid"], body["input_ids"])
    return [reply_to(rid, ids) for rid, ids in zip(body["rid"], body["input_ids"], strict=True)]


@pytest.fixture
def recorded(serve: Any) -> Any:
    """``async with recorded(answer, **options) as (client, bodies)``: an engine that answers ``answer(body)``."""

    @asynccontextmanager
    async def opened(answer: Callable[[Any], Any] = answers, **options: Any) -> AsyncIterator[tuple[Any, list[Any]]]:
        bodies: list[Any] = []

        async def generate(request: Any) -> Response:
            bodies.append(await request.json())
            made = answer(bodies[-1])
            return made if isinstance(made, Response) else Response(json.dumps(made))

        app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
        async with serve(app) as url, aiohttp.ClientSession() as http:
            single = HttpEngineClient(url, http, vocab_size=39, context_length=64, routing=None)
            async with BatchingClient(single, **options) as client:
                yield client, bodies

    return opened


async def test_requests_of_one_moment_are_one_http_request_and_each_gets_its_own_reply(recorded: Any) -> None:
    async with recorded() as (client, bodies):
        requests = [request_of(number, [3 + number] * (1 + number % 3)) for number in range(20)]
        found = await outcomes(client, requests)
    assert len(bodies) == 1
    assert [generation.output_ids.tolist() for generation in found] == [
        [request.input_ids[0], len(request.input_ids)] for request in requests
    ]
    assert [options["sampling_seed"] for options in bodies[0]["sampling_params"]] == list(range(20))


async def test_a_request_that_comes_later_does_not_wait_for_the_batch(recorded: Any) -> None:
    async with recorded() as (client, bodies):
        await outcomes(client, [request_of(0), request_of(1)])
        await client.generate(request_of(2))
    assert [body["rid"] for body in bodies] == [["r0", "r1"], "r2"]


async def test_a_request_that_may_take_long_travels_alone(recorded: Any) -> None:
    async with recorded(max_new_tokens=8) as (client, bodies):
        await outcomes(client, [request_of(0, new=8), request_of(1, new=9), request_of(2, new=8)])
    assert sorted(map(str, (body["rid"] for body in bodies))) == ["['r0', 'r2']", "r1"]


async def test_every_engine_gets_neighbours_and_a_batch_holds_a_bounded_prompt(recorded: Any) -> None:
    async with recorded(engines=2, max_prompt_tokens=10) as (client, bodies):
        await outcomes(client, [request_of(number, [3] * 4) for number in range(5)])
    assert sorted(map(str, (body["rid"] for body in bodies))) == ["['r0', 'r1']", "['r3', 'r4']", "r2"]


async def test_replies_of_a_batch_carry_the_models_own_logprobs_and_each_ones_routing_rows(
    make_engine: Any, served: Any, moe: Any, reference: Any, routing_spec: RoutingSpec
) -> None:
    prompts = {0: [3, 4, 5], 4: [6, 7, 8, 9, 10], 2: [3, 4, 5, 11]}
    requests = [request_of(start, prompt, start=start) for start, prompt in prompts.items()]
    async with served(make_engine(moe)) as (url, http):
        single = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=routing_spec)
        async with BatchingClient(single) as client:
            found = await outcomes(client, requests)
    for request, generation in zip(requests, found, strict=True):
        ids = [*request.input_ids, *generation.output_ids.tolist()]
        plain = reference(moe, ids)
        np.testing.assert_allclose(generation.logprobs, plain.logprobs[len(request.input_ids) - 1 :], atol=1e-4)
        rows = plain.routing[request.routed_experts_start_len : -1]
        np.testing.assert_array_equal(generation.routed_experts, rows)


async def test_what_the_client_refuses_fails_its_own_caller_only(recorded: Any) -> None:
    async with recorded() as (client, _):
        good, bad, other = await outcomes(client, [request_of(0), request_of(1, [39]), request_of(2)])
    assert isinstance(bad, EngineRequestError)
    assert (good.output_ids.tolist(), other.output_ids.tolist()) == ([3, 1], [3, 1])


async def test_what_the_engine_refuses_fails_its_own_caller_only(make_engine: Any, served: Any, moe: Any) -> None:
    async with served(make_engine(moe)) as (url, http):
        single = HttpEngineClient(url, http, vocab_size=1000, context_length=128, routing=None)
        async with BatchingClient(single) as client:
            good, bad = await outcomes(client, [request_of(0), request_of(1, [500])])
    assert len(good.output_ids)
    assert isinstance(bad, EngineRequestError)
    assert "got 500" in str(bad)


async def test_a_malformed_reply_fails_its_own_caller_only(recorded: Any) -> None:
    def spoiled(body: Any) -> Any:
        replies = answers(body)
        del replies[1]["meta_info"]["output_token_logprobs"]
        return replies

    async with recorded(spoiled) as (client, _):
        good, bad, other = await outcomes(client, [request_of(0), request_of(1), request_of(2)])
    assert isinstance(bad, EngineError)
    assert "output_token_logprobs" in str(bad)
    assert (good.output_ids.tolist(), other.output_ids.tolist()) == ([3, 1], [3, 1])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda body: answers(body)[:1], "a batch of 2 with a list of as many; got 1"),
        (lambda body: answers(body)[0], "a batch of 2 with a list of as many; got dict"),
        (lambda body: Response("full", 503), "answered 503: full"),
    ],
)
async def test_an_engine_that_fails_a_batch_fails_each_caller_with_an_error_of_its_own(
    answer: Any, message: str, recorded: Any
) -> None:
    async with recorded(answer) as (client, bodies):
        first, second = await outcomes(client, [request_of(0), request_of(1)])
    assert message in str(first)
    assert message in str(second)
    assert first is not second
    assert len(bodies) == 1


async def test_a_cancelled_caller_leaves_at_once_and_the_others_get_their_replies(
    make_engine: Any, served: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    found: list[Generation] = []
    async with served(engine) as (url, http):
        single = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=None)
        async with BatchingClient(single) as client, anyio.create_task_group() as tasks:

            async def stays() -> None:
                found.append(await client.generate(request_of(0)))

            async def leaves() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await client.generate(request_of(1))
                left.set()

            scopes: list[anyio.CancelScope] = []
            left = anyio.Event()
            tasks.start_soon(stays)
            tasks.start_soon(leaves)
            await steps.at_forward()
            scopes[0].cancel()
            with anyio.fail_after(10):
                await left.wait()  # while the engine is still held
            assert not found
            steps.open()
    assert len(found[0].output_ids)


async def test_cancelling_all_callers_aborts_the_batch_in_the_engine(
    make_engine: Any, served: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    async with served(engine) as (url, http):
        single = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=None)
        async with BatchingClient(single) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcomes, client, [request_of(0), request_of(1)])
                await steps.at_forward()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(10):
                while set(engine._thread._aborts) != {"r0", "r1"}:
                    await anyio.lowlevel.checkpoint()
        steps.open()


async def test_closing_the_client_fails_those_who_wait(make_engine: Any, served: Any, gate: Any, moe: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    found: list[Any] = []

    async def wait(client: Any) -> None:
        found.extend(await outcomes(client, [request_of(0), request_of(1)]))

    async with served(engine) as (url, http), anyio.create_task_group() as tasks:
        single = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=None)
        async with BatchingClient(single) as client:
            tasks.start_soon(wait, client)
            await steps.at_forward()
        steps.open()
        found.extend(await outcomes(client, [request_of(2)]))
    assert [str(error) for error in found] == ["the engine client was closed"] * 3
