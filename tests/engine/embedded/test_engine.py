"""Generations of the engine against plain forward passes of its model."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

from miles_core.engine.embedded.request import Generated, GenerateSpec
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.errors import EngineError, EngineRequestError

pytestmark = pytest.mark.anyio


def spec(prompt: Any, rid: str = "r", *, key: str | None = None, **options: Any) -> GenerateSpec:
    options = {"max_new_tokens": 8, "sampling_seed": 1, "ignore_eos": True, **options}
    return GenerateSpec(
        rid,
        np.array(prompt, np.int32),
        SamplingOptions(**options),
        return_logprob=True,
        return_routed_experts=True,
        extra_key=key,
    )


def specs(count: int, **options: Any) -> list[GenerateSpec]:
    random = np.random.default_rng(count)
    prompts = [random.integers(2, 39, random.integers(1, 20)) for _ in range(count)]
    return [spec(prompt, f"r{i}", sampling_seed=i, **options) for i, prompt in enumerate(prompts)]


@pytest.fixture
def run(make_engine: Any) -> Any:
    """``await run(model, *batches)``: the batches one after the other on one engine."""

    async def generate(model: Any, *batches: list[GenerateSpec], **settings: Any) -> list[list[Generated]]:
        engine = make_engine(model, **settings)
        engine.start()
        try:
            return [await engine.generate(batch) for batch in batches]
        finally:
            engine.close()

    return generate


def check(finished: Generated, model: Any, reference: Any) -> None:
    """Logprobs and routing equal those of one plain forward pass over prompt and output."""
    ids = [*finished.spec.prompt.tolist(), *finished.output_ids.tolist()]
    plain = reference(model, ids, finished.spec.sampling.temperature or 1.0)
    start = len(finished.spec.prompt) - 1
    np.testing.assert_allclose(finished.logprobs, plain.logprobs[start:], atol=1e-4)
    if plain.routing is not None:
        np.testing.assert_array_equal(finished.routing, plain.routing[: len(ids) - 1])


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("kind", ["moe", "dense"])
async def test_logprobs_and_routing_equal_a_plain_forward_pass(
    kind: str, temperature: float, run: Any, reference: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    [batch] = await run(model, specs(20, temperature=temperature))
    for finished in batch:
        check(finished, model, reference)
    if not temperature:
        for finished in batch:
            ids = [*finished.spec.prompt.tolist(), *finished.output_ids.tolist()]
            greedy = reference(model, ids).logits.argmax(-1).tolist()
            assert greedy[len(finished.spec.prompt) - 1 : -1] == finished.output_ids.tolist()


async def test_a_seeded_request_is_the_same_alone_in_a_crowd_and_from_a_cached_prefix(run: Any, moe: Any) -> None:
    crowd = specs(20)
    together, again, small = await run(moe, crowd, crowd, specs(20)), None, None
    again = await run(moe, crowd, max_running_requests=2, max_prefill_tokens=16)
    alone = await run(moe, [crowd[3]])
    small = alone[0][0].output_ids.tolist()
    assert any(finished.cached_tokens for finished in together[1])
    for first, cached, other in zip(together[0], together[1], again[0], strict=True):
        assert first.output_ids.tolist() == cached.output_ids.tolist() == other.output_ids.tolist()
    assert small == together[0][3].output_ids.tolist()


async def test_unseeded_requests_differ_and_follow_the_engine_seed(run: Any, moe: Any) -> None:
    prompts = [spec([5, 6], f"r{i}", sampling_seed=None) for i in range(6)]
    [first], [second], [other] = [await run(moe, prompts, seed=seed) for seed in (1, 1, 2)]
    outputs = [[finished.output_ids.tolist() for finished in batch] for batch in (first, second, other)]
    assert outputs[0] == outputs[1] != outputs[2]
    assert len({tuple(ids) for ids in outputs[0]}) > 1


async def test_requests_join_while_others_run(make_engine: Any, gate: Any, moe: Any, reference: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    engine.start()
    results: list[Generated] = []

    async def one(request: GenerateSpec) -> None:
        results.extend(await engine.generate([request]))

    try:
        async with anyio.create_task_group() as tasks:
            for request in specs(3):
                tasks.start_soon(one, request)
                await steps.at_forward()
                steps.permit(2)
                await steps.at_forward()
            steps.open()
    finally:
        engine.close()
    assert len(results) == 3
    for finished in results:
        check(finished, moe, reference)


async def test_the_next_turn_reuses_its_own_tokens_with_the_rows_they_were_sampled_with(
    run: Any, make_engine: Any, moe: Any, reference: Any
) -> None:
    engine = make_engine(moe)
    engine.start()
    try:
        [first] = await engine.generate([spec([3, 4, 5, 6])])
        turn = [*first.spec.prompt, *first.output_ids, 7, 8]
        [second] = await engine.generate([spec(turn)])
        [branch] = await engine.generate([spec([*first.spec.prompt, *first.output_ids[:2], 9, 9])])
    finally:
        engine.close()
    assert second.cached_tokens == len(first.spec.prompt) + len(first.output_ids) - 1
    assert branch.cached_tokens >= len(first.spec.prompt) + 2
    for finished in (first, second, branch):
        check(finished, moe, reference)
    np.testing.assert_array_equal(second.routing[: len(first.routing)], first.routing)


async def test_a_group_shares_one_prefill(run: Any, moe: Any, reference: Any) -> None:
    prompt = list(range(5, 17))
    group = [spec(prompt, f"r{i}", sampling_seed=i) for i in range(8)]
    [batch] = await run(moe, group)
    assert sorted(finished.cached_tokens for finished in batch) == [0] + [len(prompt) - 1] * 7
    for finished in batch:
        check(finished, moe, reference)


async def test_another_extra_key_recomputes(run: Any, moe: Any) -> None:
    prompt = list(range(5, 17))
    batches = await run(moe, [spec(prompt, key="v1")], [spec(prompt, key="v2")], [spec(prompt, key="v1")])
    assert [batch[0].cached_tokens for batch in batches] == [0, 0, 11]


async def test_many_more_requests_than_slots_all_end_right(run: Any, moe: Any, reference: Any) -> None:
    crowd = specs(40)
    [batch] = await run(moe, crowd, max_running_requests=3, max_prefill_tokens=20)
    assert [finished.spec.rid for finished in batch] == [request.rid for request in crowd]
    for finished in batch:
        check(finished, moe, reference)


async def test_a_full_context_ends_the_request(run: Any, moe: Any) -> None:
    [[finished]] = await run(moe, [spec([3] * 20, max_new_tokens=None)], context_length=30)
    assert finished.finish_reason == {"type": "length", "length": 8}


async def test_stop_tokens_and_eos_end_with_the_token_kept(run: Any, moe: Any) -> None:
    [[free]] = await run(moe, [spec([3, 4], max_new_tokens=30)])
    third = int(free.output_ids[2])
    assert third not in free.output_ids[:2]
    [[stopped]] = await run(moe, [spec([3, 4], max_new_tokens=30, ignore_eos=False, stop_token_ids=(third,))])
    assert stopped.finish_reason == {"type": "stop", "matched": third}
    assert stopped.output_ids.tolist() == free.output_ids[:3].tolist()


async def test_a_stop_token_at_the_length_limit_reports_stop(run: Any, moe: Any) -> None:
    everything = tuple(range(2, 39))
    [[one]] = await run(moe, [spec([3, 4], max_new_tokens=1, ignore_eos=False, stop_token_ids=everything)])
    assert one.finish_reason == {"type": "stop", "matched": one.output_ids[0]}


async def test_a_request_for_no_token_is_prefilled_and_routed(run: Any, moe: Any, reference: Any) -> None:
    [[none, one]] = await run(moe, [spec([3, 4, 5], max_new_tokens=0), spec([3, 4, 5], "r1", max_new_tokens=1)])
    assert none.finish_reason == {"type": "length", "length": 0}
    assert none.spans == (("0", 0, 0),)
    np.testing.assert_array_equal(none.routing, reference(moe, [3, 4, 5]).routing[:-1])
    assert len(one.output_ids) == 1


async def test_the_models_own_eos_ends_a_request_unless_ignored(run: Any, moe: Any) -> None:
    prompts = [spec([5, 6], f"r{i}", sampling_seed=i, ignore_eos=False, max_new_tokens=100) for i in range(8)]
    [batch] = await run(moe, prompts)
    ended = [finished for finished in batch if finished.finish_reason == {"type": "stop", "matched": 1}]
    assert ended
    for finished in ended:
        assert finished.output_ids.tolist().index(1) == len(finished.output_ids) - 1
    [[ignored]] = await run(moe, [spec([5, 6], sampling_seed=int(ended[0].spec.rid[1:]), max_new_tokens=100)])
    assert len(ignored.output_ids) == 100


async def test_bfloat16_serves_too(run: Any, own_moe: Any) -> None:
    model = own_moe.bfloat16()
    [batch] = await run(model, specs(6))
    assert all(len(finished.output_ids) == 8 and np.isfinite(finished.logprobs).all() for finished in batch)


async def test_a_rid_in_use_is_refused_and_its_owner_unharmed(make_engine: Any, gate: Any, moe: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    engine.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, [spec([3])])
            await steps.at_forward()
            with pytest.raises(EngineRequestError, match="in use"):
                await engine.generate([spec([4])])
            steps.open()
        with pytest.raises(EngineRequestError, match="must differ"):
            await engine.generate([spec([4]), spec([4])])
    finally:
        engine.close()


async def test_closing_fails_what_is_inside(make_engine: Any, gate: Any, moe: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    engine.start()

    async def expect_failure() -> None:
        with pytest.raises(EngineError, match="shutting down"):
            await engine.generate([spec([3], max_new_tokens=100)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect_failure)
        await steps.at_forward()
        steps.permit()
        await steps.at_forward()
        tasks.start_soon(anyio.to_thread.run_sync, engine.close)
        steps.open()
