"""Pause, retract, abort, weight updates and crashes, between two chosen forward passes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest
import torch

from miles_core.engine.embedded.request import Generated, GenerateSpec
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.engine.embedded.unavailable import EngineUnavailable
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6, 7]


def spec(rid: str, **options: Any) -> GenerateSpec:
    sampling = SamplingOptions(**{"max_new_tokens": 10, "sampling_seed": 1, "ignore_eos": True, **options})
    return GenerateSpec(rid, np.array(PROMPT, np.int32), sampling, return_logprob=True, return_routed_experts=True)


class Bench:
    """A started engine whose forward passes wait for permission, and the outcomes of its requests."""

    def __init__(self, engine: Any, steps: Any, tasks: Any) -> None:
        self.engine, self.steps, self._tasks = engine, steps, tasks
        self.outcomes: dict[str, Generated | EngineError] = {}
        self._ended: dict[str, anyio.Event] = {}

    def ask(self, rid: str, **options: Any) -> None:
        self._ended[rid] = anyio.Event()
        self._tasks.start_soon(self._generate, spec(rid, **options))

    async def ask_and_generate(self, rid: str, tokens: int) -> None:
        """Start a request and stop before the forward pass that makes its token number ``tokens + 1``."""
        self.ask(rid)
        await self.steps.at_forward()
        for _ in range(tokens):
            self.steps.permit()
            await self.steps.at_forward()

    async def ended(self, *rids: str) -> None:
        for rid in rids:
            await self._ended[rid].wait()

    async def between_steps(self, call: Any, *args: Any) -> None:
        """Run a blocking control call that must wait for the pass now at the gate."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, call, *args)
            while not self.engine._thread._holds:
                await anyio.lowlevel.checkpoint()
            self.steps.permit()

    async def _generate(self, request: GenerateSpec) -> None:
        try:
            [self.outcomes[request.rid]] = await self.engine.generate([request])
        except EngineError as error:
            self.outcomes[request.rid] = error
        self._ended[request.rid].set()


@pytest.fixture
def bench(make_engine: Any, gate: Any) -> Any:
    @asynccontextmanager
    async def opened(model: Any, **settings: Any) -> AsyncIterator[Bench]:
        engine = make_engine(model, **settings)
        steps = gate(engine)
        engine.start()
        try:
            async with anyio.create_task_group() as tasks:
                yield Bench(engine, steps, tasks)
                steps.open()
        finally:
            steps.open()
            await anyio.to_thread.run_sync(engine.close)

    return opened


async def undisturbed(bench: Any, model: Any) -> Generated:
    async with bench(model) as alone:
        alone.ask("r")
    return alone.outcomes["r"]


def change_weights(engine: Any) -> None:
    with engine.exclusive():
        for tensor in engine.parameters().values():
            tensor.mul_(1.1)


async def test_pause_returns_when_the_pass_is_over_and_nothing_runs_until_resume(bench: Any, moe: Any) -> None:
    plain = await undisturbed(bench, moe)
    async with bench(moe) as at:
        await at.ask_and_generate("r", 3)
        await at.between_steps(at.engine.pause, "in_place")
        at.steps.open()
        at.ask("late")
        await anyio.wait_all_tasks_blocked()
        assert at.engine.paused
        assert not at.steps.entered.acquire(blocking=False)
        assert not at.outcomes
        at.engine.resume()
    assert at.outcomes["r"].output_ids.tolist() == plain.output_ids.tolist()
    assert at.outcomes["late"].output_ids.tolist() == plain.output_ids.tolist()


async def test_retract_keeps_tokens_logprobs_and_rows_and_continues_the_same_way(
    bench: Any, moe: Any, reference: Any
) -> None:
    plain = await undisturbed(bench, moe)
    async with bench(moe) as at:
        await at.ask_and_generate("r", 3)
        await at.between_steps(at.engine.pause, "retract")
        assert at.engine.load() == {"num_requests": 1, "num_running": 0, "num_cached_tokens": 0}
        at.engine.resume()
    finished = at.outcomes["r"]
    assert finished.output_ids.tolist() == plain.output_ids.tolist()
    np.testing.assert_allclose(finished.logprobs, plain.logprobs, atol=1e-5)
    np.testing.assert_array_equal(finished.routing, plain.routing)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_deterministic_engine_gives_the_same_bits_after_a_pause(mode: str, bench: Any, moe: Any) -> None:
    async with bench(moe, deterministic=True) as plain:
        plain.ask("r")
    async with bench(moe, deterministic=True) as at:
        await at.ask_and_generate("r", 3)
        await at.between_steps(at.engine.pause, mode)
        at.ask("other", sampling_seed=2)
        at.engine.resume()
    first, second = plain.outcomes["r"], at.outcomes["r"]
    np.testing.assert_array_equal(first.output_ids, second.output_ids)
    np.testing.assert_array_equal(first.logprobs.view(np.int32), second.logprobs.view(np.int32))
    np.testing.assert_array_equal(first.routing, second.routing)


async def test_retract_across_an_update_keeps_the_old_rows_and_computes_the_rest_with_the_new_weights(
    bench: Any, own_moe: Any, reference: Any
) -> None:
    old = await undisturbed(bench, own_moe)
    async with bench(own_moe) as at:
        await at.ask_and_generate("r", 3)
        await at.between_steps(at.engine.pause, "retract")
        change_weights(at.engine)
        at.engine.commit_version(5)
        at.engine.resume()
    finished, kept = at.outcomes["r"], 4
    ids = [*PROMPT, *finished.output_ids.tolist()]
    new = reference(own_moe, ids)
    assert finished.spans == (("0", 0, kept), ("5", kept, 10))
    assert finished.version == "5"
    rows = len(PROMPT) + kept - 1
    np.testing.assert_array_equal(finished.routing[:rows], old.routing[:rows])
    np.testing.assert_array_equal(finished.routing[rows:], new.routing[rows:-1])
    np.testing.assert_allclose(finished.logprobs[:kept], old.logprobs[:kept], atol=1e-5)
    np.testing.assert_allclose(finished.logprobs[kept:], new.logprobs[rows:], atol=1e-4)


async def test_in_place_update_marks_versions_and_its_tokens_serve_no_later_request(bench: Any, own_moe: Any) -> None:
    async with bench(own_moe) as at:
        await at.ask_and_generate("r", 2)
        await at.between_steps(at.engine.pause, "in_place")
        change_weights(at.engine)
        at.engine.commit_version(1)
        at.engine.resume()
        at.steps.open()
        await at.ended("r")
        at.ask("next")
    assert at.outcomes["r"].spans == (("0", 0, 3), ("1", 3, 10))
    assert at.outcomes["next"].spans == (("1", 0, 10),)
    assert at.outcomes["next"].cached_tokens == 0


async def test_cached_prefixes_do_not_outlive_a_commit(bench: Any, moe: Any) -> None:
    async with bench(moe) as at:
        at.steps.open()
        await at.engine.generate([spec("a")])
        assert at.engine.load()["num_cached_tokens"] == 14
        at.engine.commit_version(1)
        assert at.engine.load()["num_cached_tokens"] == 0
        [after] = await at.engine.generate([spec("b")])
    assert after.cached_tokens == 0


async def test_abort_of_a_running_request_returns_its_tokens_and_spares_the_others(bench: Any, moe: Any) -> None:
    plain = await undisturbed(bench, moe)
    async with bench(moe) as at:
        at.ask("other")
        await at.ask_and_generate("r", 2)
        at.engine.abort("r")
        at.engine.abort("unknown")
    aborted = at.outcomes["r"]
    assert aborted.finish_reason["type"] == "abort"
    assert 2 <= len(aborted.output_ids) <= 4
    assert aborted.output_ids.tolist() == plain.output_ids[: len(aborted.output_ids)].tolist()
    assert len(aborted.routing) == len(PROMPT) + len(aborted.output_ids) - 1
    assert at.outcomes["other"].output_ids.tolist() == plain.output_ids.tolist()


async def test_abort_of_a_waiting_request_says_that_it_did_not_run(bench: Any, moe: Any) -> None:
    async with bench(moe, max_running_requests=1) as at:
        await at.ask_and_generate("r", 1)
        at.ask("waiting")
        await anyio.wait_all_tasks_blocked()
        at.engine.abort("waiting")
    assert not at.outcomes["waiting"].ran
    assert at.outcomes["waiting"].spans == (("0", 0, 0),)
    assert len(at.outcomes["waiting"].output_ids) == 0
    assert at.outcomes["r"].finish_reason["type"] == "length"


async def test_pause_with_abort_ends_everything_and_later_requests_wait(bench: Any, moe: Any) -> None:
    async with bench(moe, max_running_requests=1) as at:
        await at.ask_and_generate("r", 2)
        at.ask("waiting")
        await anyio.wait_all_tasks_blocked()
        await at.between_steps(at.engine.pause, "abort")
        await at.ended("r", "waiting")
        assert {len(outcome.output_ids) for outcome in at.outcomes.values()} == {0, 3}
        at.ask("late")
        await anyio.wait_all_tasks_blocked()
        assert "late" not in at.outcomes
        at.engine.resume()
    assert at.outcomes["late"].finish_reason["type"] == "length"


async def test_cancelling_a_call_aborts_its_request(bench: Any, moe: Any) -> None:
    async with bench(moe) as at:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.engine.generate, [spec("r", max_new_tokens=100)])
            await at.steps.at_forward()
            at.steps.permit()
            await at.steps.at_forward()
            tasks.cancel_scope.cancel()
        await at.between_steps(at.engine.set_out_of_service, None)
        assert at.engine.load()["num_requests"] == 0
        assert at.engine.out_of_service is None


async def test_exclusive_keeps_passes_out_and_lets_requests_wait(bench: Any, moe: Any) -> None:
    async with bench(moe) as at:
        at.steps.open()
        with at.engine.exclusive():
            at.ask("r")
            await anyio.wait_all_tasks_blocked()
            assert not at.steps.entered.acquire(blocking=False)
    assert at.outcomes["r"].finish_reason["type"] == "length"


async def test_requests_wait_while_updating_and_go_on_afterwards(bench: Any, moe: Any) -> None:
    async with bench(moe) as at:
        await at.ask_and_generate("r", 1)
        await at.between_steps(at.engine.set_out_of_service, "updating weights to version 1")
        at.ask("late")
        at.steps.open()
        await anyio.wait_all_tasks_blocked()
        assert at.engine.out_of_service == "updating weights to version 1"
        assert not at.outcomes
        at.engine.set_out_of_service(None)
    assert {outcome.finish_reason["type"] for outcome in at.outcomes.values()} == {"length"}


async def test_torn_weights_fail_what_is_inside_and_what_comes(bench: Any, moe: Any) -> None:
    async with bench(moe, max_running_requests=1) as at:
        await at.ask_and_generate("r", 1)
        at.ask("waiting")
        await anyio.wait_all_tasks_blocked()
        await at.between_steps(at.engine.set_out_of_service, "torn weights")
        with pytest.raises(EngineUnavailable, match="torn weights"):
            await at.engine.generate([spec("late")])
        at.engine.set_out_of_service(None)
        at.steps.open()
        [after] = await at.engine.generate([spec("after")])
    assert all(isinstance(at.outcomes[rid], EngineUnavailable) for rid in ("r", "waiting"))
    assert after.finish_reason["type"] == "length"


async def test_a_crash_fails_running_waiting_and_later_requests_with_its_cause(bench: Any, own_moe: Any) -> None:
    async with bench(own_moe, max_running_requests=1) as at:
        await at.ask_and_generate("r", 1)
        at.ask("waiting")
        await anyio.wait_all_tasks_blocked()
        with torch.no_grad():
            own_moe.lm_head.weight.fill_(float("nan"))
        at.steps.open()
        await at.ended("r", "waiting")
        with pytest.raises(EngineError, match="logits are not finite"):
            await at.engine.generate([spec("late")])
        assert "not finite" in at.engine.out_of_service
        calls = [partial(at.engine.pause, "abort"), at.engine.resume, at.engine.flush_cache]
        calls += [partial(at.engine.commit_version, 1), partial(at.engine.set_out_of_service, None)]
        calls += [partial(at.engine.release_memory, ["weights"]), partial(at.engine.resume_memory, ["weights"])]
        for call in calls:
            with pytest.raises(EngineUnavailable, match="logits are not finite"):
                await anyio.to_thread.run_sync(call)
        with pytest.raises(EngineUnavailable, match="logits are not finite"), at.engine.exclusive():
            pass
    assert all("not finite" in str(outcome) for outcome in at.outcomes.values())


async def test_flush_is_refused_while_requests_are_inside(bench: Any, moe: Any) -> None:
    async with bench(moe) as at:
        await at.ask_and_generate("r", 1)
        await at.between_steps(at.engine.pause, "in_place")
        assert not at.engine.flush_cache()
        at.engine.resume()
        at.steps.open()
        await at.ended("r")
        assert at.engine.flush_cache()
        assert at.engine.load()["num_cached_tokens"] == 0


async def test_parameters_are_live_named_like_the_model_and_writable(bench: Any, own_moe: Any, reference: Any) -> None:
    async with bench(own_moe) as at:
        at.steps.open()
        parameters = at.engine.parameters()
        assert set(parameters) == set(own_moe.state_dict())
        change_weights(at.engine)
        [finished] = await at.engine.generate([spec("r")])
    plain = reference(own_moe, [*PROMPT, *finished.output_ids.tolist()])
    np.testing.assert_allclose(finished.logprobs, plain.logprobs[len(PROMPT) - 1 :], atol=1e-4)
    assert torch.equal(parameters["lm_head.weight"], own_moe.lm_head.weight)
