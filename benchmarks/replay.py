"""Routing replay: what it costs in a training step, forward and backward."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from benchmarks.training import CONFIG
from miles_core.app.wiring import read_model, wire
from miles_core.config.load import load_config
from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.types import RoutingTrace, Sample, SamplingParams, Status, TurnRecord, VersionSpan
from miles_core.types.routing import expert_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.app.wiring import ModelFacts
    from miles_core.kinds.losses import TokenOutputs

FREE, REPLAYED = "free", "replayed"
LARGER: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "moe_intermediate_size": 128,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}


def run(*, repeats: int = 31, samples: int = 64, packing: bool = False, recompute: bool = False) -> Report:
    """What routing replay costs in a training step.

    Runs micro-batches of the quickstart's model and of a somewhat larger Qwen3-MoE (4 layers of 32 experts, top-4,
    hidden size 256) with and without replay, in turns. The traces are the routes that the model takes by itself, so
    that both sides compute the same.

    Parameters
    ----------
    repeats
        Rounds.
    samples
        Sequences of 20 to 60 tokens in the micro-batch; the larger model gets a quarter of them.
    packing
        All samples in one row.
    recompute
        With activation checkpointing.
    """
    torch.set_num_threads(1)
    quickstart = load_config(CONFIG)
    rows: list[dict[str, Value]] = []
    summary: dict[str, Value] = {}
    with tempfile.TemporaryDirectory(prefix="miles-replay-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LARGER))
        hub = wire(quickstart, Path(folder)).hub
        paths = {"quickstart": quickstart.resolve(quickstart.config.model.path), "larger": Path(folder)}
        for name, path in paths.items():
            backend, model = _backend(read_model(hub, path), packing=packing, recompute=recompute)
            micro_batch = _samples(backend, model, samples if name == "quickstart" else samples // 4)
            for what, step in _passes(backend, micro_batch):
                timings, cost = _measure(step, repeats)
                rows += [{"model": name, "pass": what, **timings.row(case)} for case in (FREE, REPLAYED)]
                summary[f"{name}, {what}: replay costs %"] = 100 * cost
    notes = (
        "train: forward and backward; proximal: forward alone, with the count of routes that differ.",
        "Seconds are CPU time of the process, which other work on the machine disturbs less. Cost: median over rounds.",
    )
    return Report("replay", rows, summary, notes)


def _backend(model: ModelFacts, *, packing: bool, recompute: bool) -> tuple[TorchBackend, ModelFacts]:
    source = ModelSource(str(model.path), model.bridge, model.routing, init="random")
    config = TorchBackendConfig(threads=1, packing=packing, activation_checkpointing=recompute)
    backend = TorchBackend(config, PluginContext(services={"model_source": source}))
    backend.reset_optimizer(OptimizerSettings(1e-3))
    return backend, model


def _passes(backend: TorchBackend, samples: Sequence[Sample]) -> Iterator[tuple[str, Callable[[bool], Any]]]:
    def loss(outputs: TokenOutputs) -> torch.Tensor:
        return -outputs.logprobs.mean()

    yield "train", lambda replay: backend.forward_backward(samples, loss, replay=replay, entropy=False)
    yield "proximal", lambda replay: backend.forward(samples, replay=replay)


def _measure(step: Callable[[bool], Any], repeats: int) -> tuple[Timings, float]:
    """The timings, and the median over rounds of what replay added to its neighbour in time."""
    timings = Timings((FREE, REPLAYED), FREE)
    seconds: dict[str, list[float]] = {FREE: [], REPLAYED: []}
    for replay in (False, True):
        step(replay)
    for case in timings.rounds(repeats):
        started = time.process_time()
        step(case == REPLAYED)
        seconds[case].append(time.process_time() - started)
        timings.add(case, seconds[case][-1])
    ratios = [replayed / free for free, replayed in zip(seconds[FREE], seconds[REPLAYED], strict=True)]
    return timings, median(ratios) - 1


def _samples(backend: TorchBackend, model: ModelFacts, count: int) -> list[Sample]:
    """Random tokens with the routes that the model takes for them."""
    rng = np.random.default_rng(0)
    made = [_sample(rng.integers(3, model.vocab_size, rng.integers(20, 61))) for _ in range(count)]
    return [replace(sample, routing=_own_routes(backend, model, sample)) for sample in made]


def _sample(tokens: np.ndarray[Any, Any]) -> Sample:
    length = len(tokens)
    return Sample(
        task_id="t",
        group_id="g",
        trajectory_id="x",
        agent_id="policy",
        tokens=tokens.astype(np.int32),
        loss_mask=np.array([0] + [1] * (length - 1), np.uint8),
        logprobs=np.zeros(length, np.float32),
        versions=(VersionSpan(0, 1, length),),
        turns=(TurnRecord(1, length, SamplingParams(), "stop"),),
        status=Status.COMPLETED,
    )


def _own_routes(backend: TorchBackend, model: ModelFacts, sample: Sample) -> RoutingTrace:
    assert model.routing is not None
    layers: list[torch.Tensor] = []
    points = model.bridge.replay_points(backend.model)
    handles = [point.router.register_forward_hook(lambda module, args, out: layers.append(out[2])) for point in points]
    backend.forward([sample], replay=False)
    for handle in handles:
        handle.remove()
    experts = torch.stack(layers, 1).numpy().astype(expert_dtype(model.routing.num_experts))
    return RoutingTrace(experts, model.routing.layer_ids)
