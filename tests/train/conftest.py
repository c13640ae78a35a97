from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.types import (
    Group,
    Message,
    Reward,
    RoutingTrace,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dense Qwen3 directory, without weights."""
    path = tmp_path_factory.mktemp("dense")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 103,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="session")
def dense_first_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model with a dense first layer, so that only layer 1 is routed."""
    path = tmp_path_factory.mktemp("dense-first")
    config = json.loads((MODEL / "config.json").read_text()) | {"mlp_only_layers": [0]}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def make_backend(dense_model: Path) -> Callable[..., TorchBackend]:
    def make(
        *,
        dense: bool = False,
        checkpointing: bool = False,
        seed: int = 0,
        path: Path | None = None,
        dtype: str = "float32",
        **options: bool,
    ) -> TorchBackend:
        path = path or (dense_model if dense else MODEL)
        bridge = Qwen3(None, PluginContext()) if dense else Qwen3Moe(None, PluginContext())
        spec = bridge.routing_spec(json.loads((path / "config.json").read_text()))
        source = ModelSource(str(path), bridge, spec, dtype=dtype, init="random", seed=seed)
        config = TorchBackendConfig(activation_checkpointing=checkpointing, **options)
        backend = TorchBackend(config, PluginContext(services={"model_source": source}))
        backend.reset_optimizer(OptimizerSettings(1e-3))
        return backend

    return make


def random_trace(rng: np.random.Generator, rows: int) -> RoutingTrace:
    """Distinct experts of the quickstart model: 2 layers, 8 experts, top-2."""
    experts = np.argsort(rng.random((rows, 2, 8)), axis=-1)[..., :2].astype(np.uint8)
    return RoutingTrace(experts, (0, 1))


def make_sample(
    length: int,
    seed: int = 0,
    *,
    reward: float | None = None,
    routed: bool = True,
    temperature: float = 1.0,
    name: str = "x",
    prompt: int = 3,
) -> Sample:
    rng = np.random.default_rng([seed, length])
    mask = np.array([0] * prompt + [1] * (length - prompt), np.uint8)
    return Sample(
        task_id="t",
        group_id="g",
        trajectory_id=name,
        agent_id="policy",
        tokens=rng.integers(3, 103, length).astype(np.int32),
        loss_mask=mask,
        logprobs=(-rng.random(length) * mask).astype(np.float32),
        versions=(VersionSpan(0, prompt, length),),
        turns=(TurnRecord(prompt, length, SamplingParams(temperature=temperature), "stop"),),
        status=Status.COMPLETED,
        routing=random_trace(rng, length - 1) if routed else None,
        reward=None if reward is None else Reward(reward),
    )


def make_group(index: int, *rewards: float, length: int = 8, **options) -> Group:
    trajectories = []
    for i, reward in enumerate(rewards):
        name = f"g{index}t{i}"
        sample = make_sample(length + i, seed=100 * index + i, reward=reward, name=name, **options)
        task = Task("t", (Message("user", "q"),))
        trajectories.append(Trajectory(name, task, (), (sample,), Status.COMPLETED, sample.reward))
    return Group(f"g{index}", index, trajectories[0].task, tuple(trajectories))
