"""Streamed calls of the client: the embedded engine where it behaves, scripted bytes where it must not."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import numpy as np
import pybase64
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from miles_core.engine.batching import BatchingClient
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, EngineRequestError, RoutingError
from miles_core.types import GenerateRequest, RoutingSpec, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.anyio


def request_of(
    ids: Sequence[int] = (3, 4), *, rid: str = "r", routed: bool = False, **sampling: Any
) -> GenerateRequest:
    options = SamplingParams(**{"max_new_tokens": 12, "sampling_seed": 1, **sampling})
    return GenerateRequest(ids, options, rid, routed)


def event(ids: Sequence[int], *, finish: Any = None, **meta: Any) -> bytes:
    full = {
        "finish_reason": finish,
        "weight_version": "2",
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "completion_tokens": len(ids),
        **meta,
    }
    return f"data: {json.dumps({'text': '', 'output_ids': list(ids), 'meta_info': full})}\n\n".encode()


END = {"type": "length", "length": 3}
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def scripted(serve: Any, routing_spec: RoutingSpec) -> Any:
    """``async with scripted(chunks) as (client, bodies)``: an engine that streams ``chunks``, and dies at an error."""

    @asynccontextmanager
    async def opened(*chunks: bytes | Exception, **options: Any) -> AsyncIterator[tuple[HttpEngineClient, list[Any]]]:
        bodies: list[Any] = []

        async def generate(request: Any) -> Response:
            bodies.append(await request.json())

            async def sent() -> AsyncIterator[bytes]:
                for chunk in chunks:
                    if isinstance(chunk, Exception):
                        raise chunk
                    yield chunk

            return StreamingResponse(sent(), media_type="text/event-stream")

        app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
        async with serve(app) as url, aiohttp.ClientSession() as http:
            shape = {"vocab_size": 39, "context_length": 64, "routing": routing_spec, **options}
            yield HttpEngineClient(url, http, **shape), bodies

    return opened


async def test_a_streamed_call_returns_what_the_same_call_returns(
    make_engine: Any, served: Any, moe: Any, routing_spec: RoutingSpec
) -> None:
    async with served(make_engine(moe)) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=40, context_length=128, routing=routing_spec)
        got: list[list[int]] = []
        streamed = await client.generate(request_of(routed=True), on_tokens=lambda ids: got.append(list(ids)))
        whole = await client.generate(request_of(routed=True))
    assert len(got) > 1, "they came while they were generated"
    assert [token for part in got for token in part] == streamed.output_ids.tolist() == whole.output_ids.tolist()
    np.testing.assert_allclose(streamed.logprobs, whole.logprobs, atol=1e-6)
    np.testing.assert_array_equal(streamed.routed_experts, whole.routed_experts)
    assert (streamed.finish_reason, streamed.versions) == (whole.finish_reason, whole.versions)


async def test_the_body_asks_for_a_stream_and_is_the_same_else(scripted: Any) -> None:
    async with scripted(event([7], finish=END), DONE) as (client, bodies):
        await client.generate(request_of(stop=("\n\n",)), on_tokens=lambda ids: None)
        with pytest.raises(EngineError, match="something else than JSON"):
            await client.generate(request_of(stop=("\n\n",)))
    assert bodies[0] == {**bodies[1], "stream": True}
    assert bodies[0]["sampling_params"]["stop"] == ["\n\n"]


async def test_tokens_are_passed_on_before_more_come(serve: Any) -> None:
    """The engine sends the next token only once the one before was seen."""
    seen = anyio.Event()

    async def generate(request: Any) -> Response:
        async def sent() -> AsyncIterator[bytes]:
            yield event([7])
            await seen.wait()
            yield event([7, 8], finish=END)

        return StreamingResponse(sent())

    app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
    async with serve(app) as url, aiohttp.ClientSession() as http:
        client = HttpEngineClient(url, http, vocab_size=39, context_length=64, routing=None)
        with anyio.fail_after(20):
            found = await client.generate(request_of(), on_tokens=lambda ids: seen.set())
    assert found.output_ids.tolist() == [7, 8]


async def test_an_event_may_be_megabytes_long(scripted: Any) -> None:
    spec = RoutingSpec(num_layers=48, layer_ids=tuple(range(48)), num_experts=128, top_k=8)
    rows = np.tile(np.arange(8, dtype="<i4"), (4000, 48, 1))
    encoded = pybase64.b64encode(rows.tobytes()).decode()
    last = event([7, 8], finish=END, routed_experts=encoded)
    assert len(last) > 8_000_000
    async with scripted(event([7]), last, DONE, routing=spec, context_length=5000) as (client, _):
        found = await client.generate(request_of([3] * 3999, routed=True), on_tokens=lambda ids: None)
    np.testing.assert_array_equal(found.routed_experts, rows)


@pytest.mark.parametrize(
    ("chunks", "kind", "message", "got"),
    [
        ((event([7]), RuntimeError("dead")), EngineError, "no answer from .*ClientPayloadError", [7]),
        ((event([7]), event([7, 8])[:50], RuntimeError("dead")), EngineError, "no answer from", [7]),
        ((event([7]), event([7, 8])[:50]), EngineError, "ended after 1 tokens without a finish reason", [7]),
        ((event([7]), DONE), EngineError, "without a finish reason", [7]),
        ((), EngineError, "ended after 0 tokens", []),
        ((event([7]), b'data: {"error": {"message": "cuda", "code": 400}}\n\n', DONE), EngineError, "cuda", [7]),
        ((b'data: {"error": {"message": "bad top_p", "code": 400}}\n\n',), EngineRequestError, "bad top_p", []),
        ((event([7]), event([7, 39])), EngineError, "sampled token 39", [7]),
        ((event([7]), event([7, 39], finish=END)), EngineError, "sampled token 39", [7]),
        ((event([7]), event([7, 8], finish=END, output_token_logprobs=None)), EngineError, "no output_token_lo", [7]),
    ],
)
async def test_a_stream_that_goes_wrong_is_an_error_and_no_half_generation(
    chunks: Any, kind: type[EngineError], message: str, got: list[int], scripted: Any
) -> None:
    seen: list[int] = []
    async with scripted(*chunks) as (client, _):
        with pytest.raises(EngineError, match=message) as caught:
            await client.generate(request_of(), on_tokens=seen.extend)
    assert type(caught.value) is kind
    assert seen == got


async def test_routing_that_does_not_fit_is_an_error_of_a_stream_too(scripted: Any) -> None:
    async with scripted(event([7], finish=END, routed_experts="AAAA"), DONE) as (client, _):
        with pytest.raises(RoutingError, match="must hold"):
            await client.generate(request_of(routed=True), on_tokens=lambda ids: None)


async def test_a_refused_stream_keeps_its_status(make_engine: Any, served: Any, moe: Any) -> None:
    async with served(make_engine(moe)) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=40, context_length=128, routing=None)
        with pytest.raises(EngineRequestError, match="answered 400.*no constrained decoding.*json_schema"):
            await client.generate(request_of(json_schema="{}"), on_tokens=lambda ids: None)


async def test_what_the_callback_raises_reaches_the_caller_and_ends_the_request(
    make_engine: Any, served: Any, moe: Any
) -> None:
    def full(ids: Sequence[int]) -> None:
        raise anyio.WouldBlock

    async with served(make_engine(moe)) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=40, context_length=128, routing=None)
        with pytest.raises(anyio.WouldBlock):
            await client.generate(request_of(max_new_tokens=120), on_tokens=full)
        await until_empty(url, http)


async def until_empty(url: str, http: aiohttp.ClientSession) -> None:
    """Wait until the engine says that nothing is inside."""
    with anyio.fail_after(20):
        while True:
            async with http.get(f"{url}/server_info") as reply:
                load = await reply.json()
            if (load["num_running"], load["num_requests"]) == (0, 0):
                return


async def test_cancelling_a_streamed_call_ends_its_request_in_the_engine(
    make_engine: Any, served: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    got: list[int] = []
    async with served(engine) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=40, context_length=128, routing=None)

        async with anyio.create_task_group() as tasks:

            def seen(ids: Sequence[int]) -> None:
                got.extend(ids)
                tasks.cancel_scope.cancel()

            async def call() -> None:
                await client.generate(request_of(max_new_tokens=120, temperature=0.0), on_tokens=seen)

            tasks.start_soon(call)
            steps.permit(2)  # the prompt, and the step after it
        with anyio.fail_after(20):
            while not engine._thread._aborts:
                await anyio.lowlevel.checkpoint()
        steps.permit(1)  # the step that the abort waits for; no other one may run
        await until_empty(url, http)
        steps.open()
    assert len(got) == 2


async def test_streamed_requests_are_in_no_batch(make_engine: Any, served: Any, moe: Any) -> None:
    class Batchless(HttpEngineClient):
        async def generate_batch(self, requests: Sequence[GenerateRequest]) -> Any:
            raise AssertionError("a batch")

    got: dict[str, list[int]] = {"a": [], "b": []}
    found: dict[str, list[int]] = {}
    async with served(make_engine(moe)) as (url, http):
        single = Batchless(url, http, vocab_size=40, context_length=128, routing=None)
        async with BatchingClient(single) as client, anyio.create_task_group() as tasks:

            async def call(rid: str) -> None:
                generation = await client.generate(request_of([3, ord(rid) % 30], rid=rid), on_tokens=got[rid].extend)
                found[rid] = generation.output_ids.tolist()

            tasks.start_soon(call, "a")
            tasks.start_soon(call, "b")
    assert found == got
    assert found["a"] != found["b"]
