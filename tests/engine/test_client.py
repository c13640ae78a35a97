"""The engine client: against the embedded engine where it behaves, against scripted replies where it must not."""

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
from starlette.responses import Response
from starlette.routing import Route

from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, EngineRequestError, MilesError, RoutingError
from miles_core.types import FinishReason, GenerateRequest, Generation, RoutingSpec, SamplingParams, VersionSpan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


def request_of(ids: list[int], *, routed: bool = False, start: int = 0, **sampling: Any) -> GenerateRequest:
    options = SamplingParams(**{"max_new_tokens": 4, "sampling_seed": 1, **sampling})
    return GenerateRequest(ids, options, "r", routed, start)


@pytest.fixture
def scripted(serve: Any, routing_spec: RoutingSpec) -> Any:
    """``async with scripted(reply, status) as (client, bodies)``: an engine that always answers ``reply``."""

    @asynccontextmanager
    async def opened(
        reply: Any, status: int = 200, **options: Any
    ) -> AsyncIterator[tuple[HttpEngineClient, list[Any]]]:
        bodies: list[Any] = []

        async def generate(request: Any) -> Response:
            bodies.append(await request.json())
            return Response(reply if isinstance(reply, bytes) else json.dumps(reply), status)

        app = Starlette(routes=[Route("/generate", generate, methods=["POST"])])
        async with serve(app) as url, aiohttp.ClientSession() as http:
            options = {"vocab_size": 39, "context_length": 16, "routing": routing_spec, **options}
            yield HttpEngineClient(url, http, **options), bodies

    return opened


def reply_of(ids: list[int], **meta: Any) -> dict[str, Any]:
    full = {
        "id": "r",
        "finish_reason": {"type": "length", "length": len(ids)},
        "prompt_tokens": 3,
        "weight_version": "2",
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    return {"text": "", "output_ids": ids, "meta_info": {**full, **meta}}


async def test_a_generation_of_the_embedded_engine_arrives_whole(
    make_engine: Any, served: Any, moe: Any, reference: Any, routing_spec: RoutingSpec
) -> None:
    async with served(make_engine(moe)) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=routing_spec)
        generation = await client.generate(request_of([3, 4, 5], routed=True, start=1, temperature=0.7))
    ids = [3, 4, 5, *generation.output_ids.tolist()]
    plain = reference(moe, ids, 0.7)
    np.testing.assert_allclose(generation.logprobs, plain.logprobs[2:], atol=1e-4)
    np.testing.assert_array_equal(generation.routed_experts, plain.routing[1:-1])
    assert generation.versions == (VersionSpan(0, 0, len(generation.output_ids)),)
    assert generation.cached_tokens == 0
    assert generation.output_ids.dtype == np.int32
    assert generation.logprobs.dtype == np.float32


async def test_an_engines_400_is_a_request_error_with_its_message(make_engine: Any, served: Any, moe: Any) -> None:
    async with served(make_engine(moe)) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=1000, context_length=128, routing=None)
        with pytest.raises(EngineRequestError, match=r"answered 400: token ids must be in \[0, 40\); got 500"):
            await client.generate(request_of([500]))


async def test_cancelling_closes_the_connection_and_aborts_in_the_engine(
    make_engine: Any, served: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    async with served(engine) as (url, http):
        client = HttpEngineClient(url, http, vocab_size=39, context_length=128, routing=None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.generate, request_of([3], max_new_tokens=100))
            await steps.at_forward()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            while not engine._thread._aborts:
                await anyio.lowlevel.checkpoint()
        steps.open()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "empty"),
        ([3, 39], r"\[0, 39\); got 39"),
        ([-1], "got -1"),
        ([3] * 16, "16 tokens leaves no room for output in a context of 16"),
    ],
)
async def test_what_would_hurt_an_engine_is_never_sent(ids: list[int], message: str, scripted: Any) -> None:
    async with scripted(reply_of([7])) as (client, bodies):
        with pytest.raises(EngineRequestError, match=message):
            await client.generate(request_of(ids))
    assert not bodies


@pytest.mark.parametrize("token", [39, 151000, -5])
async def test_a_token_that_the_trained_model_does_not_have_is_refused_at_the_first_reply(
    token: int, scripted: Any
) -> None:
    message = rf"sampled token {token} for r; the trained model's vocabulary has 39"
    async with scripted(reply_of([7, token])) as (client, _):
        with pytest.raises(EngineError, match=message):
            await client.generate(request_of([3]))
    async with scripted([reply_of([7]), reply_of([7, token])]) as (client, _):
        right, wrong = await client.generate_batch([request_of([3]), request_of([4])])
    assert right.output_ids.tolist() == [7]
    assert isinstance(wrong, EngineError)


async def test_the_body_is_sglangs_and_the_output_is_cut_to_the_context(scripted: Any) -> None:
    async with scripted(reply_of([7])) as (client, bodies):
        await client.generate(request_of([3] * 9, max_new_tokens=50, temperature=0.7, sampling_seed=2**64 - 1))
    assert bodies == [
        {
            "rid": "r",
            "input_ids": [3] * 9,
            "sampling_params": {
                "temperature": 0.7,
                "max_new_tokens": 7,
                "stop_token_ids": [],
                "sampling_seed": 2**64 - 1,
            },
            "return_logprob": True,
        }
    ]


async def test_requests_carry_the_salt_of_the_moment_they_are_made(scripted: Any) -> None:
    salts = iter(["6-a", "7-b", "7-b"])
    async with scripted(reply_of([7]), extra_key=lambda: next(salts)) as (client, bodies):
        await client.generate(request_of([3]))
        await client.generate(request_of([3]))
        with pytest.raises(EngineError, match="a list of as many"):
            await client.generate_batch([request_of([3]), request_of([4])])
    assert [body["extra_key"] for body in bodies] == ["6-a", "7-b", "7-b"]


async def test_an_abort_from_the_queue_is_an_empty_generation_without_versions(scripted: Any) -> None:
    reply = {"text": "", "output_ids": [], "meta_info": {"id": "r", "finish_reason": {"type": "abort"}}}
    async with scripted(reply) as (client, _):
        generation = await client.generate(request_of([3, 4], routed=True))
    assert generation.finish_reason == FinishReason("abort")
    assert generation.versions == ()
    assert len(generation.output_ids) == len(generation.logprobs) == 0
    assert generation.routed_experts is None


@pytest.mark.parametrize("missing", ["output_token_logprobs", "weight_version", "routed_experts"])
async def test_an_abort_without_logprobs_versions_or_routing_keeps_no_tokens_and_no_rows(
    missing: str, scripted: Any
) -> None:
    abort = {"type": "abort", "message": "gone"}
    reply = reply_of([7, 8], **{"finish_reason": abort, "routed_experts": routed(18), missing: None})
    async with scripted(reply) as (client, _):
        generation = await client.generate(request_of([3, 4], routed=True))
    assert generation.finish_reason == FinishReason("abort", None, "gone")
    assert len(generation.output_ids) == len(generation.logprobs) == 0
    assert generation.versions == ()
    assert generation.routed_experts is None


@pytest.mark.parametrize("with_routing", [False, True])
async def test_an_abort_that_says_everything_keeps_its_tokens(with_routing: bool, scripted: Any) -> None:
    rows = np.tile(np.array([0, 1], np.int32), (3, 3, 1))
    reply = reply_of(
        [7, 8], finish_reason={"type": "abort"}, routed_experts=pybase64.b64encode(rows.tobytes()).decode()
    )
    async with scripted(reply) as (client, _):
        generation = await client.generate(request_of([3, 4], routed=with_routing))
    assert generation.output_ids.tolist() == [7, 8]
    assert generation.versions == (VersionSpan(2, 0, 2),)
    if with_routing:
        np.testing.assert_array_equal(generation.routed_experts, rows[:, 1:])
    else:
        assert generation.routed_experts is None


async def test_spans_are_taken_from_the_reply_or_made_of_its_one_version(scripted: Any) -> None:
    spans = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 3}]
    async with scripted(reply_of([7, 8, 9], weight_versions=spans)) as (client, _):
        assert (await client.generate(request_of([3]))).versions == (VersionSpan(1, 0, 2), VersionSpan(2, 2, 3))
    async with scripted(reply_of([7, 8, 9], weight_version="default")) as (client, _):
        assert (await client.generate(request_of([3]))).versions == (VersionSpan(0, 0, 3),)
    empty = [{"version": "0", "start": 0, "end": 0}, {"version": "1", "start": 0, "end": 3}]
    async with scripted(reply_of([7, 8, 9], weight_versions=empty)) as (client, _):
        assert (await client.generate(request_of([3]))).versions == (VersionSpan(1, 0, 3),)


def routed(count: int) -> str:
    return pybase64.b64encode(np.zeros(count, np.int32).tobytes()).decode()


def spans(*bounds: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"version": "1", "start": start, "end": end} for start, end in bounds]


def logprobs(*values: float | None) -> list[list[Any]]:
    return [[value, token, None] for value, token in zip(values, (7, 8), strict=True)]


@pytest.mark.parametrize(
    ("meta", "kind", "message"),
    [
        ({}, EngineError, "--enable-return-routed-experts"),
        ({"routed_experts": routed(23)}, RoutingError, r"must hold 96 bytes.*4 rows x 3 layers x 2.*; got 92\n"),
        ({"routed_experts": routed(24)[:-8]}, RoutingError, "must hold 96 bytes.*got 90"),
        ({"routed_experts": "&&&&"}, RoutingError, "not base64"),
        ({"finish_reason": {"type": "abort"}, "routed_experts": routed(18)}, RoutingError, "4 rows.*which is 3 rows"),
        ({"routed_experts": routed(24)}, RoutingError, "row 0, layer 1 names an expert twice"),
        ({"output_token_logprobs": None}, EngineError, "no output_token_logprobs"),
        ({"output_token_logprobs": [[-1.0, 7, None]]}, EngineError, "got 1 logprobs for 2 ids"),
        ({"output_token_logprobs": [[-1.0, 8, None], [-1.0, 7, None]]}, EngineError, "one by one"),
        ({"finish_reason": {"type": "odd"}}, EngineError, "malformed.*odd"),
        ({"finish_reason": None}, EngineError, "malformed"),
        ({"weight_version": "sha-1"}, EngineError, "integer; got 'sha-1'"),
        ({"weight_version": None}, EngineError, "neither weight_versions nor weight_version"),
        ({"weight_versions": spans((0, 1))}, EngineError, r"tile the output, \[0, 2\).*got \[0, 1\)"),
        ({"weight_versions": spans((0, 3))}, EngineError, "tile the output"),
        ({"weight_versions": spans((1, 2))}, EngineError, "tile the output"),
        ({"weight_versions": spans((0, 1), (0, 2))}, EngineError, "tile the output"),
        ({"weight_versions": spans((1, 2), (0, 1))}, EngineError, "tile the output"),
        ({"weight_versions": spans((0, 3), (3, 2))}, EngineError, "tile the output"),
        (
            {"weight_versions": spans((0, 3)), "finish_reason": {"type": "abort"}, "routed_experts": routed(24)},
            EngineError,
            "tile the output",
        ),
        ({"output_token_logprobs": logprobs(-1.0, None)}, EngineError, "finite number; that of output 1 is None"),
        ({"output_token_logprobs": logprobs(float("nan"), -1.0)}, EngineError, "that of output 0 is nan"),
        ({"output_token_logprobs": logprobs(-1.0, float("-inf"))}, EngineError, "that of output 1 is -inf"),
        ({"output_token_logprobs": logprobs(-1.0, -1e300)}, EngineError, "that of output 1 is -1e.300"),
    ],
)
async def test_a_reply_that_cannot_be_trained_on_is_an_error(
    meta: Any, kind: type[MilesError], message: str, scripted: Any
) -> None:
    async with scripted(reply_of([7, 8], **meta)) as (client, _):
        with pytest.raises(kind, match=message):
            await client.generate(request_of([3, 4, 5], routed=True))


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_routing_holds_the_moe_layers_of_every_fed_token(reason: str, scripted: Any) -> None:
    rows = np.stack([np.arange(12) % 6, (np.arange(12) + 1) % 6], -1).astype(np.int32).reshape(4, 3, 2)
    payload = pybase64.b64encode(rows.tobytes()).decode()
    async with scripted(reply_of([7, 8], finish_reason={"type": reason}, routed_experts=payload)) as (client, _):
        generation: Generation = await client.generate(request_of([3, 4, 5], routed=True))
    np.testing.assert_array_equal(generation.routed_experts, rows[:, [1, 2]])
    assert generation.routed_experts.dtype == np.uint8


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error": {"message": "too long"}}', EngineRequestError, "answered 400: too long"),
        (422, b"plain words", EngineRequestError, "answered 422: plain words"),
        (404, b"{}", EngineError, "answered 404"),
        (429, b"{}", EngineError, "answered 429"),
        (500, b'{"detail": "boom"}', EngineError, "answered 500: boom"),
        (503, b'{"message": "no worker"}', EngineError, "answered 503: no worker"),
        (200, b"<html>", EngineError, "something else than JSON"),
        (200, b"[" * 100_000, EngineError, "something else than JSON"),
        (500, b"[" * 100_000, EngineError, "answered 500"),
        (200, b"[1]", EngineError, "one JSON object"),
    ],
)
async def test_http_errors_keep_the_servers_message_and_tell_a_bad_request_from_a_bad_engine(
    status: int, body: bytes, kind: type[EngineError], message: str, scripted: Any
) -> None:
    async with scripted(body, status) as (client, _):
        with pytest.raises(EngineError, match=message) as caught:
            await client.generate(request_of([3]))
    assert type(caught.value) is kind


async def test_an_engine_that_is_not_there_is_named_with_the_cause(serve: Any) -> None:
    async with serve(Starlette()) as url:
        pass
    async with aiohttp.ClientSession() as http:
        client = HttpEngineClient(url, http, vocab_size=39, context_length=16, routing=None)
        with pytest.raises(EngineError, match=f"no answer from {url}/generate: ClientConnectorError"):
            await client.generate(request_of([3]))


async def test_asking_for_routing_without_knowing_its_shape_is_refused_before_sending(serve: Any) -> None:
    async with aiohttp.ClientSession() as http:
        client = HttpEngineClient("http://127.0.0.1:9", http, vocab_size=39, context_length=16, routing=None)
        with pytest.raises(RoutingError, match="no routing shape"):
            await client.generate(request_of([3], routed=True))


async def test_the_clients_json_keeps_integers_above_2_to_the_53(scripted: Any) -> None:
    async with scripted(reply_of([7], weight_version=str(2**60 + 1), weight_versions=None)) as (client, _):
        generation = await client.generate(request_of([3]))
    assert generation.versions[0].version == 2**60 + 1
