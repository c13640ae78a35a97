"""Deterministic passes compute what a deterministic embedded engine sampled from, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import torch

from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.request import GenerateSpec
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.types import RoutingTrace, Sample, SamplingParams, Status, TurnRecord, VersionSpan

from .conftest import make_sample

if TYPE_CHECKING:
    from miles_core.train.torch_backend import TorchBackend

pytestmark = pytest.mark.anyio
TEMPERATURES = (1.0, 0.7, 1.3)
KINDS = pytest.mark.parametrize("dense", [False, True], ids=["moe", "dense"])


class Rollout:
    """A deterministic engine that serves a copy of a backend's model; what it generates becomes samples."""

    def __init__(self, backend: TorchBackend, dtype: str) -> None:
        source = backend._source
        model = source.bridge.build(source.path, dtype=dtype, init="random", seed=source.seed)
        settings = EngineSettings(context_length=128, max_running_requests=8, deterministic=True)
        self.engine = EmbeddedEngine(
            model,
            SimpleNamespace(eos_token_id=None),
            settings,
            replay_points=source.bridge.replay_points(model),
            routing=source.routing,
        )
        self._spec = source.routing
        self._made = 0

    async def turns(self, prompts: list[list[int]], temperatures: tuple[float, ...], tokens: int) -> list[Sample]:
        """One generation for each prompt, all at once."""
        specs = []
        for index, prompt in enumerate(prompts):
            self._made += 1
            options = SamplingOptions(
                max_new_tokens=tokens + index,
                temperature=temperatures[index % len(temperatures)],
                sampling_seed=self._made,
                ignore_eos=True,
            )
            ids = np.array(prompt, np.int32)
            specs.append(
                GenerateSpec(
                    f"r{self._made}", ids, options, return_logprob=True, return_routed_experts=bool(self._spec)
                )
            )
        return [self._sample(finished) for finished in await self.engine.generate(specs)]

    def _sample(self, finished: Any) -> Sample:
        prompt, options = len(finished.spec.prompt), finished.spec.sampling
        length = prompt + len(finished.output_ids)
        return Sample(
            task_id="t",
            group_id="g",
            trajectory_id="x",
            agent_id="policy",
            tokens=np.concatenate([finished.spec.prompt, finished.output_ids]).astype(np.int32),
            loss_mask=np.repeat(np.array([0, 1], np.uint8), [prompt, length - prompt]),
            logprobs=np.concatenate([np.zeros(prompt, np.float32), finished.logprobs]),
            versions=(VersionSpan(0, prompt, length),),
            turns=(TurnRecord(prompt, length, SamplingParams(options.temperature), "length"),),
            status=Status.COMPLETED,
            routing=None if self._spec is None else RoutingTrace(finished.routing[: length - 1], self._spec.layer_ids),
        )


@pytest.fixture
async def rolled_out(make_backend):
    """``rollout, backend = rolled_out(**options)``: a running engine and a deterministic backend, same weights."""
    engines = []

    def make(*, dtype: str = "float32", dense: bool = False) -> tuple[Rollout, TorchBackend]:
        backend = make_backend(deterministic=True, dtype=dtype, dense=dense)
        rollout = Rollout(backend, dtype)
        rollout.engine.start()
        engines.append(rollout.engine)
        return rollout, backend

    yield make
    for engine in engines:
        await anyio.to_thread.run_sync(engine.close)


def prompts(*lengths: int) -> list[list[int]]:
    return [np.random.default_rng(length).integers(3, 103, length).tolist() for length in lengths]


def assert_sampled_from(logprobs: torch.Tensor, samples: list[Sample]) -> None:
    for row, sample in zip(logprobs.detach().numpy(), samples, strict=True):
        trained = sample.loss_mask == 1
        np.testing.assert_array_equal(row[: len(trained)][trained], sample.logprobs[trained])


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_proximal_and_current_logprobs_are_those_that_tokens_were_sampled_from(
    rolled_out, dense: bool, dtype: str
) -> None:
    rollout, backend = rolled_out(dtype=dtype, dense=dense)
    samples = await rollout.turns(prompts(3, 9, 1, 5), TEMPERATURES, 6)
    proximal = backend.forward(samples, replay=True).logprobs
    assert_sampled_from(proximal, samples)
    seen = []

    def loss(outputs):
        seen.append(outputs.logprobs)
        return -outputs.logprobs.sum()

    backend.forward_backward(samples, loss, replay=True, entropy=False)
    assert torch.equal(seen[0].detach(), proximal), "the ratio of the first update is exactly 1"


@KINDS
async def test_a_turn_that_continues_a_cached_prefix_is_bit_equal(rolled_out, dense: bool) -> None:
    rollout, backend = rolled_out(dense=dense)
    first = await rollout.turns(prompts(4, 7), (1.0,), 5)
    second = await rollout.turns([[*sample.tokens.tolist(), 5, 6] for sample in first], (0.8,), 5)
    assert_sampled_from(backend.forward(second, replay=True).logprobs, second)


@KINDS
async def test_bit_equal_after_an_update_of_the_weights(rolled_out, dense: bool) -> None:
    rollout, backend = rolled_out(dense=dense)
    before = await rollout.turns(prompts(4, 6), TEMPERATURES, 5)
    backend.forward_backward(before, lambda outputs: -outputs.logprobs.sum(), replay=True, entropy=False)
    backend.optimizer_step(1e-2)
    assert not torch.equal(
        backend.forward(before, replay=True).logprobs[0, 4:9], torch.tensor(before[0].logprobs[4:9])
    ), "the weights moved"
    with rollout.engine.exclusive(), torch.no_grad():
        for name, parameter in rollout.engine.parameters().items():
            parameter.copy_(backend.parameters()[name])
    await anyio.to_thread.run_sync(rollout.engine.commit_version, 1)
    after = await rollout.turns(prompts(4, 6), TEMPERATURES, 5)
    assert_sampled_from(backend.forward(after, replay=True).logprobs, after)


@KINDS
def test_gradients_and_entropies_are_those_of_one_pass(make_backend, dense: bool) -> None:
    samples = [make_sample(length, seed=length, temperature=0.8, prompt=1) for length in (7, 2, 1, 5)]
    backends = [make_backend(dense=dense, deterministic=deterministic) for deterministic in (False, True)]
    entropies = []
    for backend in backends:
        entropies.append(backend.forward(samples, replay=True).entropy)
        backend.forward_backward(
            samples, lambda out: (out.logprobs - 0.1 * out.entropy).sum(), replay=True, entropy=True
        )
    assert (entropies[0] - entropies[1]).abs().max() < 1e-5
    expected = dict(backends[0].model.named_parameters())
    for name, parameter in backends[1].model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name].grad, atol=2e-5), name


def test_what_samples_have_in_common_is_computed_once(make_backend, monkeypatch) -> None:
    """The tokens decide, and the routes that lead to them."""
    sample = make_sample(9, seed=1, prompt=1)
    tokens, experts = sample.tokens.copy(), sample.routing.experts.copy()
    tokens[5:] = 3  # fed tokens 0 to 4 stay
    experts[2, 0] = experts[2, 0, ::-1]  # the same experts, but in another order
    other_end, other_routes = replace(sample, tokens=tokens), replace(sample, routing=RoutingTrace(experts, (0, 1)))
    samples = [other_routes, sample, make_sample(1, prompt=1), other_end, sample]
    backend, passes = make_backend(deterministic=True), []
    narrowed = backend.replay.narrowed
    monkeypatch.setattr(backend.replay, "narrowed", lambda *args: passes.append(args[1]) or narrowed(*args))
    together = backend.forward(samples, replay=True).logprobs
    assert len(passes) == 8 + (8 - 5) + (8 - 2)
    for row, one in enumerate(samples):
        alone = make_backend(deterministic=True).forward([one], replay=True).logprobs[0]
        assert torch.equal(together[row, : len(one.tokens)], alone)


def test_demonstrations_take_one_pass(make_backend) -> None:
    backend = make_backend(deterministic=True)
    forwards = []
    backend.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    samples = [make_sample(length, prompt=1, routed=False) for length in (6, 9)]
    demonstrations = [replace(sample, agent_id="demonstration") for sample in samples]
    for micro_batch, passes in ((demonstrations, 1), (samples, 5 + 8)):
        backend.forward_backward(micro_batch, lambda out: -out.logprobs.sum(), replay=False, entropy=False)
        assert len(forwards) == passes
        forwards.clear()
