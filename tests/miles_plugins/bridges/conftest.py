"""Tiny models of every MoE family: a family is one entry of ``FAMILIES``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from miles_core.api import (
    OptimizerSettings,
    PluginContext,
    RoutingSpec,
    RoutingTrace,
    Sample,
    SamplingParams,
    Status,
    TurnRecord,
    VersionSpan,
)
from miles_core.kinds.train_backends import ModelSource
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_plugins.bridges.deepseek_v3 import DeepseekV3
from miles_plugins.bridges.glm4_moe import Glm4Moe
from miles_plugins.bridges.gpt_oss import GptOss
from miles_plugins.bridges.mixtral import Mixtral
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from miles_plugins.bridges.moe import MoeBridge

VOCAB = 39
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
_GROUPED = {
    "moe_intermediate_size": 8,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
}
_LATENT = {
    "moe_layer_freq": 1,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
}


@dataclass(frozen=True)
class Family:
    """A bridge, a tiny ``config.json`` in the spelling of published checkpoints, and one attention weight."""

    bridge: type[MoeBridge]
    model_type: str
    changes: dict[str, Any]
    layer_ids: tuple[int, ...]
    attention_weight: str = "self_attn.q_proj.weight"

    @property
    def config(self) -> dict[str, Any]:
        named = {"architectures": [self.bridge.architecture], "model_type": self.model_type}
        return {**_SIZES, **named, **self.changes}

    @property
    def spec(self) -> RoutingSpec:
        return RoutingSpec(3, self.layer_ids, 6, 2)

    def make_bridge(self) -> MoeBridge:
        return self.bridge(None, PluginContext())

    def write(self, path: Path, **changes: Any) -> Path:
        """A model directory without weights."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps({**self.config, **changes}))
        return path

    def build(self, path: Path, *, seed: int = 0, dtype: str = "float32", **changes: Any) -> Any:
        """A model whose parameters and buffers are all random: biases, norms and correction biases too."""
        directory = str(self.write(path, **changes))
        return shaken(self.make_bridge().build(directory, dtype=dtype, init="random", seed=seed), seed)


FAMILIES = {
    "qwen3_moe": Family(
        Qwen3Moe,
        "qwen3_moe",
        {"num_experts": 6, "moe_intermediate_size": 8, "norm_topk_prob": True, "mlp_only_layers": [1]},
        (0, 2),
    ),
    "mixtral": Family(Mixtral, "mixtral", {"num_local_experts": 6, "sliding_window": None}, (0, 1, 2)),
    "deepseek_v3": Family(DeepseekV3, "deepseek_v3", {**_GROUPED, **_LATENT}, (1, 2), "self_attn.kv_b_proj.weight"),
    "glm4_moe": Family(Glm4Moe, "glm4_moe", {**_GROUPED, "use_qk_norm": True}, (1, 2)),
    "gpt_oss": Family(GptOss, "gpt_oss", {"num_local_experts": 6, "sliding_window": 4}, (0, 1, 2), "self_attn.sinks"),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def shaken(model: Any, seed: int = 0) -> Any:
    """``model`` with noise on every parameter and persistent buffer, in place."""
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype))
    return model


@pytest.fixture
def make_backend(family: Family, tmp_path: Path) -> Callable[..., TorchBackend]:
    """A torch backend on a model of the family, ``double`` with eager experts in float64."""

    def make(*, checkpointing: bool = False, packing: bool = False, double: bool = False) -> TorchBackend:
        path = family.write(tmp_path / "backend")
        source = ModelSource(str(path), family.make_bridge(), family.spec, init="random")
        config = TorchBackendConfig(activation_checkpointing=checkpointing, packing=packing)
        backend = TorchBackend(config, PluginContext(services={"model_source": source}))
        shaken(backend.model)
        if double:
            backend.model.set_experts_implementation("eager")  # grouped_mm has no float64
            backend.model.double()
        backend.reset_optimizer(OptimizerSettings(1e-2))
        return backend

    return make


def make_sample(spec: RoutingSpec, length: int, seed: int = 0) -> Sample:
    """Random tokens and random routes, each row of distinct experts."""
    rng = np.random.default_rng([seed, length])
    shape = (length - 1, len(spec.layer_ids), spec.num_experts)
    experts = np.argsort(rng.random(shape), axis=-1)[..., : spec.top_k].astype(np.uint8)
    return sample_of(rng.integers(0, VOCAB, length), RoutingTrace(experts, spec.layer_ids), prompt=2)


def sample_of(tokens: Any, routing: RoutingTrace, *, prompt: int) -> Sample:
    length = len(tokens)
    mask = np.array([0] * prompt + [1] * (length - prompt), np.uint8)
    return Sample(
        task_id="t",
        group_id="g",
        trajectory_id="x",
        agent_id="policy",
        tokens=np.asarray(tokens, np.int32),
        loss_mask=mask,
        logprobs=np.zeros(length, np.float32),
        versions=(VersionSpan(0, prompt, length),),
        turns=(TurnRecord(prompt, length, SamplingParams(), "stop"),),
        status=Status.COMPLETED,
        routing=routing,
    )


def own_routes(family: Family, model: Any, tokens: Any) -> RoutingTrace:
    """What the routers of transformers choose in one plain pass over all tokens but the last."""
    chosen: list[torch.Tensor] = []
    points = family.make_bridge().replay_points(model)
    hooks = [point.router.register_forward_hook(lambda m, a, out: chosen.append(out[2])) for point in points]
    with torch.no_grad():
        model(input_ids=torch.as_tensor(np.asarray(tokens, np.int64))[None, :-1], use_cache=False)
    for hook in hooks:
        hook.remove()
    return RoutingTrace(torch.stack(chosen, 1).numpy().astype(np.uint8), family.layer_ids)
