"""Our client against both engines: what sessions get, and what never leaves this process."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

from miles_core.api import SamplingParams
from miles_core.errors import EngineRequestError, RoutingError
from miles_core.types import GenerateRequest, VersionSpan

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6]


def request_of(prompt: list[int], rid: str, **options: Any) -> GenerateRequest:
    sampling = SamplingParams(**{"temperature": 0.8, "max_new_tokens": 12, **options.pop("sampling", {})})
    return GenerateRequest(prompt, sampling, rid, **options)


async def test_a_generation_has_ids_logprobs_versions_and_routes(served: Any) -> None:
    routed = served.model == "moe"
    found = await served.client().generate(
        request_of(PROMPT, "c", return_routed_experts=routed, routed_experts_start_len=2 if routed else 0)
    )
    ids = found.output_ids.tolist()
    assert found.versions == (VersionSpan(0, 0, len(ids)),)
    expected = served.reference.logprobs(PROMPT, ids, 0.8)
    assert found.logprobs == pytest.approx(expected, abs=1e-4)
    if routed:
        np.testing.assert_array_equal(found.routed_experts, served.reference.routes([*PROMPT, *ids])[2:-1])


async def test_a_batch_is_answered_request_by_request(served: Any) -> None:
    routed = served.model == "moe"
    requests = [request_of(PROMPT[:length], f"b{length}!", return_routed_experts=routed) for length in (1, 2, 4)]
    for request, found in zip(requests, await served.client().generate_batch(requests), strict=True):
        expected = served.reference.logprobs(request.input_ids, found.output_ids.tolist(), 0.8)
        assert found.logprobs == pytest.approx(expected, abs=1e-4)


async def test_an_aborted_generation_keeps_its_tokens_and_can_be_recognised(served: Any) -> None:
    results: list[Any] = []

    async def ask() -> None:
        results.append(await served.client().generate(request_of(PROMPT, "x", sampling={"max_new_tokens": 2000})))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        async with served.in_flight():
            await served.post("/abort_request", {"abort_all": True})
    found = results[0]
    assert found.finish_reason.type in ("abort", "stop")
    assert len(found.logprobs) == len(found.output_ids)


async def test_cancelling_a_call_ends_its_request(served: Any) -> None:
    request = request_of(PROMPT, "cancelled", sampling={"max_new_tokens": 2000, "temperature": 0.0})
    with anyio.move_on_after(0.5):
        await served.client().generate(request)
    assert await served.rid_comes_free("cancelled")


@pytest.mark.parametrize("prompt", [[], [3, 40], [-1], [3] * 2042])
async def test_a_prompt_that_could_kill_a_server_is_refused_before_it_is_sent(served: Any, prompt: list[int]) -> None:
    with pytest.raises(EngineRequestError):
        await served.client().generate(request_of(prompt, "bad"))
    good = request_of(PROMPT, "good")
    with pytest.raises(EngineRequestError):
        await served.client().generate_batch([good, request_of(prompt, "bad")])
    assert len((await served.client().generate(good)).output_ids)


async def test_the_longest_prompt_and_more_tokens_than_fit_are_served(served: Any) -> None:
    prompt = [5] * 2041
    found = await served.client().generate(request_of(prompt, "long", sampling={"max_new_tokens": 100}))
    assert 1 <= len(found.output_ids) <= 5


@pytest.mark.parametrize("model", ["dense"], indirect=True)
async def test_routes_of_a_dense_model_cannot_be_asked_for(served: Any) -> None:
    with pytest.raises(RoutingError, match="knows no routing shape"):
        await served.client().generate(request_of(PROMPT, "r", return_routed_experts=True))
