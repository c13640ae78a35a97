"""Training from a checkpoint, for tests that do so in a process of their own: ``python -m tests.train.resumed``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.train.batching import TrainStep
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_plugins.advantages.grpo import Grpo, GrpoConfig
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.losses.ppo_clip import PpoClip, PpoClipConfig

from .conftest import make_group

SETTINGS = TrainerSettings(
    epochs=1,
    mini_batches=2,
    old_logprobs="proximal",
    replay_routing=True,
    max_tokens_per_micro_batch=40,
    seed=0,
)


def build(path: Path, *, seed: int, dtype: str = "float32", checkpointing: bool = False) -> TorchBackend:
    """A backend with random weights; dense or MoE by the directory's config."""
    config = json.loads((path / "config.json").read_text())
    bridge = (Qwen3 if config["model_type"] == "qwen3" else Qwen3Moe)(None, PluginContext())
    source = ModelSource(str(path), bridge, bridge.routing_spec(config), init="random", seed=seed, dtype=dtype)
    options = TorchBackendConfig(activation_checkpointing=checkpointing, threads=1)
    return TorchBackend(options, PluginContext(services={"model_source": source}))


def trainer_of(backend: TorchBackend, reference: Path | None = None) -> Trainer:
    """A trainer with a KL to the reference model, begun."""
    loss = PpoClip(PpoClipConfig(kl_coefficient=0.1), PluginContext())
    estimator = Grpo(GrpoConfig(), PluginContext())
    trainer = Trainer(backend, estimator, Objective([WeightedLoss("ppo_clip", loss)]), SETTINGS)
    trainer.begin(OptimizerSettings(1e-3, weight_decay=0.1), reference)
    return trainer


def train(trainer: Trainer, steps: range) -> list[dict[str, float]]:
    """Metrics of these steps; each has groups and a learning rate of its own."""
    metrics = []
    for step in steps:
        groups = (make_group(2 * step, 1.0, 0.0, 0.0), make_group(2 * step + 1, 0.0, 1.0, length=12))
        tokens = sum(t.samples[0].trained_tokens for g in groups for t in g.trajectories)
        metrics.append(trainer.train_step(TrainStep(step, groups, tokens, 1e-3 / (step + 1))))
    return metrics


def result_of(backend: TorchBackend, metrics: list[dict[str, float]]) -> dict[str, Any]:
    """What must not differ: metrics, weights, and the next random numbers."""
    weights = {name: tensor.detach().clone() for name, tensor in backend.parameters().items()}
    return {"metrics": metrics, "weights": weights, "random": torch.rand(3)}


def main(cases: str) -> None:
    """Each case resumes and writes its result."""
    for case in json.loads(cases):
        backend = build(Path(case["model"]), seed=1, checkpointing=case["checkpointing"])
        trainer = trainer_of(backend, Path(case["reference"]))
        backend.restore(Path(case["checkpoint"]))
        torch.save(result_of(backend, train(trainer, range(*case["steps"]))), case["result"])


if __name__ == "__main__":
    main(sys.argv[1])
