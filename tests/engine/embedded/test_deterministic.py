"""In deterministic mode a result is the same bit by bit, whatever ran beside or before it."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles_core.engine.embedded.request import Generated, GenerateSpec
from miles_core.engine.embedded.runner import ModelRunner
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.engine.embedded.slots import PrefixMatch, SlotTable
from miles_core.errors import EngineRequestError

pytestmark = pytest.mark.anyio
KINDS = pytest.mark.parametrize("kind", ["moe", "dense"])


def spec(prompt: Any, rid: str = "r", **options: Any) -> GenerateSpec:
    options = {"max_new_tokens": 8, "sampling_seed": 1, "ignore_eos": True, **options}
    return GenerateSpec(
        rid, np.array(prompt, np.int32), SamplingOptions(**options), return_logprob=True, return_routed_experts=True
    )


def crowd(count: int, seed: int = 0) -> list[GenerateSpec]:
    random = np.random.default_rng(seed)
    return [
        spec(
            random.integers(2, 39, random.integers(1, 16)),
            f"r{i}",
            sampling_seed=int(random.integers(1 << 40)),
            temperature=float(random.choice([0.0, 0.7, 1.0])),
            top_p=float(random.choice([0.8, 1.0])),
            max_new_tokens=int(random.integers(2, 10)),
        )
        for i in range(count)
    ]


def assert_same_bits(first: Generated, second: Generated) -> None:
    np.testing.assert_array_equal(first.output_ids, second.output_ids)
    np.testing.assert_array_equal(first.logprobs.view(np.int32), second.logprobs.view(np.int32))
    assert first.finish_reason == second.finish_reason
    if first.routing is None or second.routing is None:
        assert first.routing is second.routing
    else:
        np.testing.assert_array_equal(first.routing, second.routing)


@pytest.fixture
def run(make_engine: Any) -> Any:
    """``await run(model, *batches)``: the batches one after the other on one deterministic engine."""

    async def generate(model: Any, *batches: list[GenerateSpec], **options: Any) -> list[list[Generated]]:
        engine = make_engine(model, **{"deterministic": True, **options})
        engine.start()
        try:
            return [await engine.generate(batch) for batch in batches]
        finally:
            await anyio.to_thread.run_sync(engine.close)

    return generate


@pytest.fixture
def alone(run: Any) -> Any:
    """``await alone(model, spec)``: the request on an engine of its own."""

    async def generate(model: Any, request: GenerateSpec, **options: Any) -> Generated:
        [[finished]] = await run(model, [request], **options)
        return finished

    return generate


@KINDS
@pytest.mark.parametrize("others", [1, 5, 16])
async def test_a_request_is_the_same_alone_and_among_others(
    kind: str, others: int, run: Any, alone: Any, request: pytest.FixtureRequest
) -> None:
    """With 8 running requests at most, so that some wait, and each gets another slot than alone."""
    model = request.getfixturevalue(kind)
    [together] = await run(model, crowd(others + 1))
    for finished in together:
        assert_same_bits(finished, await alone(model, finished.spec))


async def test_the_default_mode_lets_a_batch_decide_some_bits(run: Any, moe: Any) -> None:
    """Else there was nothing to prove: products of 1 and of many rows are computed in other orders."""
    [together] = await run(moe, crowd(16), deterministic=False)
    singles = [(await run(moe, [finished.spec], deterministic=False))[0][0] for finished in together]
    assert any(
        first.logprobs.tobytes() != second.logprobs.tobytes() for first, second in zip(together, singles, strict=True)
    )


@KINDS
async def test_a_cached_prefix_gives_the_bits_of_a_fresh_one(
    kind: str, run: Any, alone: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    first = crowd(6)
    [before] = await run(model, first)
    following = [
        spec([*one.spec.prompt, *one.output_ids, 7, 8], f"t{i}", sampling_seed=i) for i, one in enumerate(before)
    ]
    _, again, turns = await run(model, first, first, following)
    for fresh, cached in zip(before, again, strict=True):
        assert_same_bits(fresh, cached)
    assert all(cached.cached_tokens for cached in turns)
    for turn in turns:
        assert_same_bits(turn, await alone(model, turn.spec))


@KINDS
async def test_the_capacity_of_the_cache_does_not_matter(
    kind: str, run: Any, alone: Any, request: pytest.FixtureRequest
) -> None:
    """Rows hold 64 tokens at first, 128 once a longer request came; the last one grows them while it runs."""
    model = request.getfixturevalue(kind)
    short, growing = spec([3, 4, 5], "short"), spec([6] * 50, "growing", max_new_tokens=30)
    plain = [await alone(model, one) for one in (short, growing)]
    longest = [spec([*range(2, 38)] * 3, f"long{i}", max_new_tokens=10) for i in range(3)]
    _, grown = await run(model, longest, [short, growing])
    for expected, found in zip(plain, grown, strict=True):
        assert_same_bits(expected, found)


async def test_requests_that_share_all_their_tokens_share_passes_and_stay_the_same(
    run: Any, alone: Any, moe: Any
) -> None:
    group = [spec([5, 6, 7], f"r{i}", sampling_seed=i, temperature=0.2) for i in range(8)]
    [together] = await run(moe, group)
    assert 1 < len({finished.output_ids.tobytes() for finished in together}) < 8
    for finished in together:
        assert_same_bits(finished, await alone(moe, finished.spec))


def test_a_slot_with_the_same_tokens_costs_no_pass(moe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = SlotTable(4)
    runner = ModelRunner(moe, table, None, 64, deterministic=True)
    runner.reserve(8)
    rows = [np.array(row, np.int32) for row in ([3, 4, 5], [3, 4, 6], [3, 4, 5])]
    slots = np.array([table.take(PrefixMatch(-1, 0), row, None, shared=True) for row in rows])
    passes: list[Any] = []
    forward = moe.forward
    monkeypatch.setattr(moe, "forward", lambda *args, **kwargs: passes.append(kwargs) or forward(*args, **kwargs))
    with torch.inference_mode():
        logits = runner.forward(slots, np.zeros(3, np.int64), np.full(3, 3))
        assert len(passes) == 6
        table.tokens[slots, 3] = 9
        following = runner.forward(slots[[2]], np.array([3]), np.array([1]))
        expected = runner.forward(slots[[0]], np.array([3]), np.array([1]))
    assert torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], logits[1])
    assert torch.equal(following, expected)
    assert all(call["input_ids"].shape == (1, 1) for call in passes)


REQUESTS = st.builds(
    lambda prompt, new, seed, temperature, top_k, stop: spec(
        prompt,
        max_new_tokens=new,
        sampling_seed=seed,
        temperature=temperature,
        top_k=top_k,
        stop_token_ids=stop,
        ignore_eos=False,
    ),
    st.lists(st.integers(2, 4), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([3, 1 << 30]),
    st.sampled_from([(), (5, 6, 7, 8, 9, 10)]),
)


@given(batches=st.lists(st.lists(REQUESTS, min_size=1, max_size=5), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_of_batches_gives_each_request_its_own_result(
    batches: list[list[GenerateSpec]], run: Any, alone: Any, moe: Any
) -> None:
    named = [
        [GenerateSpec(f"{i}.{j}", one.prompt, one.sampling, True, True) for j, one in enumerate(batch)]
        for i, batch in enumerate(batches)
    ]

    async def check() -> None:
        for results in await run(moe, *named, max_running_requests=3):
            for finished in results:
                assert_same_bits(finished, await alone(moe, finished.spec))

    anyio.run(check)


async def test_over_http_a_reply_is_the_same_alone_and_among_others(
    make_engine: Any, served: Any, post: Any, moe: Any
) -> None:
    bodies = [
        {
            "rid": one.rid,
            "input_ids": one.prompt.tolist(),
            "sampling_params": {"max_new_tokens": 8, "temperature": 1.0, "sampling_seed": i},
            "return_logprob": True,
            "return_routed_experts": True,
        }
        for i, one in enumerate(crowd(12))
    ]
    replies: dict[str, Any] = {}

    async def ask(url: str, http: Any, body: Any) -> None:
        status, replies[body["rid"]] = await post(http, f"{url}/generate", body)
        assert status == 200

    async with served(make_engine(moe, deterministic=True)) as (url, http), anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(ask, url, http, body)
    together, replies = replies, {}
    for body in bodies[::4]:
        async with served(make_engine(moe, deterministic=True)) as (url, http):
            await ask(url, http, body)
        rid = body["rid"]
        for reply in (together[rid], replies[rid]):
            del reply["meta_info"]["cached_tokens"]
        assert together[rid] == replies[rid]


async def test_sampling_without_a_seed_is_refused_and_greedy_needs_none(
    make_engine: Any, served: Any, post: Any, moe: Any
) -> None:
    async with served(make_engine(moe, deterministic=True)) as (url, http):
        status, reply = await post(http, f"{url}/generate", {"input_ids": [3, 4]})
        assert status == 400
        assert "without a seed" in reply["error"]["message"]
        assert "Send sampling_seed" in reply["error"]["message"]
        greedy = {"input_ids": [3, 4], "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
        assert (await post(http, f"{url}/generate", greedy))[0] == 200
        async with http.get(f"{url}/health_generate") as response:
            assert response.status == 200


async def test_a_batch_with_one_unseeded_request_is_refused_as_a_whole(make_engine: Any, moe: Any) -> None:
    engine = make_engine(moe, deterministic=True)
    engine.start()
    try:
        with pytest.raises(EngineRequestError, match="request 'b'"):
            await engine.generate([spec([3], "a"), spec([4], "b", sampling_seed=None)])
        assert engine.load()["num_requests"] == 0
    finally:
        engine.close()
