"""R3 end to end: the routes that an engine recorded are those inside the trainer's experts, forward and recompute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from miles_core.api import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.train.route_count import RouteCount
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.types import (
    GenerateRequest,
    RoutingTrace,
    Sample,
    SamplingParams,
    Status,
    TurnRecord,
    VersionSpan,
)
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("model", ["moe"], indirect=True)]
OBSERVATION = [7, 8, 9]
LENGTHS = (3, 11, 6)


async def two_turns(served: Any, prompt: list[int], name: str) -> Sample:
    """Two generations with an observation between them; the second asks only for rows that are new."""
    client, spec, ids, rows, spans = served.client(), served.routing, list(prompt), [], []
    logprobs = np.zeros(0, np.float32)
    for turn in range(2):
        known = sum(map(len, rows))
        sampling = SamplingParams(temperature=1.0, max_new_tokens=9)
        request = GenerateRequest(ids, sampling, f"{name}-{turn}.", True, known)
        generation = await client.generate(request)
        start = len(ids)
        ids = [*ids, *generation.output_ids.tolist()]
        logprobs = np.concatenate([logprobs, np.zeros(start - len(logprobs), np.float32), generation.logprobs])
        spans.append(TurnRecord(start, len(ids), sampling, generation.finish_reason.type))
        rows.append(generation.routed_experts)
        ids += OBSERVATION if turn == 0 else []
    mask = np.zeros(len(ids), np.uint8)
    for turn in spans:
        mask[turn.start : turn.end] = 1
    return Sample(
        task_id="t",
        group_id="g",
        trajectory_id=name,
        agent_id="policy",
        tokens=np.array(ids, np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        versions=tuple(VersionSpan(0, turn.start, turn.end) for turn in spans),
        turns=tuple(spans),
        status=Status.COMPLETED,
        routing=RoutingTrace.joined(rows, spec),
        reward=None,
    )


def backend(served: Any, **options: Any) -> TorchBackend:
    source = ModelSource(served.model_path, Qwen3Moe(None, PluginContext()), served.routing)
    made = TorchBackend(TorchBackendConfig(**options), PluginContext(services={"model_source": source}))
    made.reset_optimizer(OptimizerSettings(1e-3))
    return made


def perturb(made: TorchBackend) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * 0.2)


def watch_experts(made: TorchBackend) -> list[list[np.ndarray[Any, Any]]]:
    """What enters the experts of each layer, pass by pass; a hook of this test's own."""
    seen: list[list[np.ndarray[Any, Any]]] = []
    for layer in made.model.get_decoder().layers:
        calls: list[np.ndarray[Any, Any]] = []
        seen.append(calls)

        def hook(module: Any, args: Any, kwargs: Any, calls: list[np.ndarray[Any, Any]] = calls) -> None:
            calls.append((args[1] if len(args) > 1 else kwargs["top_k_index"]).numpy().copy())

        layer.mlp.experts.register_forward_pre_hook(hook, with_kwargs=True)
    return seen


def recorded(samples: list[Sample], layer: int) -> np.ndarray[Any, Any]:
    return np.concatenate([sample.routing.experts[:, layer] for sample in samples if sample.routing is not None])


def train(made: TorchBackend, samples: list[Sample]) -> None:
    made.forward_backward(samples, lambda outputs: -outputs.logprobs.sum(), replay=True, entropy=False)


async def test_every_recorded_route_is_used_in_forward_and_in_recompute(served: Any) -> None:
    samples = [await two_turns(served, list(range(3, 3 + length)), f"p{length}") for length in LENGTHS]
    made = backend(served, activation_checkpointing=True, packing=True)
    perturb(made)
    seen = watch_experts(made)
    train(made, samples)
    for layer, calls in enumerate(seen):
        assert len(calls) == 2, "one pass forward, one in recompute"
        for used in calls:
            np.testing.assert_array_equal(used, recorded(samples, layer))


async def test_the_engine_s_routes_are_those_of_the_same_model_in_the_trainer(served: Any) -> None:
    samples = [await two_turns(served, list(range(3, 3 + length)), f"q{length}") for length in LENGTHS]
    made = backend(served)
    with RouteCount(made._source.bridge.replay_points(made.model)) as count:
        outputs = made.forward(samples, replay=False)
        count.add(samples)
    assert count.own_fraction == 0, "float32 on both sides"
    for row, sample in enumerate(samples):
        there = sample.loss_mask.astype(bool)
        np.testing.assert_allclose(outputs.logprobs[row, : len(there)][there], sample.logprobs[there], atol=1e-4)


async def test_without_replay_a_perturbed_trainer_leaves_the_routes_and_the_logprobs(served: Any) -> None:
    samples = [await two_turns(served, list(range(3, 3 + length)), f"r{length}") for length in LENGTHS]
    made = backend(served)
    perturb(made)
    shares = []
    for replay in (False, True):
        with RouteCount(made._source.bridge.replay_points(made.model)) as count:
            made.forward(samples, replay=replay)
            count.add(samples)
        shares.append((count.own_fraction, count.used_fraction))
    (own, used), (_, replayed) = shares
    assert own == used > 0
    assert replayed == 0


async def test_a_permuted_row_is_caught(served: Any) -> None:
    sample = await two_turns(served, [3, 4, 5, 6], "s")
    assert sample.routing is not None
    experts = sample.routing.experts.copy()
    first, second = next((a, b) for a in range(len(experts)) for b in range(a) if (experts[a] != experts[b]).any())
    experts[[first, second]] = experts[[second, first]]
    made = backend(served, activation_checkpointing=True, packing=True)
    seen = watch_experts(made)
    train(made, [replace(sample, routing=RoutingTrace(experts, sample.routing.layer_ids))])
    differing = [
        sorted({int(row) for row in np.flatnonzero((used != sample.routing.experts[:, layer]).any(-1))})
        for layer, calls in enumerate(seen)
        for used in calls
    ]
    assert set().union(*differing) == {first, second}
