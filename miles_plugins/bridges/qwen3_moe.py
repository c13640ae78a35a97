"""Qwen3 MoE: transformers 5 stacks the experts that checkpoints name one by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.api import NameMapping, ReplayPoint, RoutingSpec, Stack
from miles_plugins.bridges.hugging_face import EMBEDDINGS, build_model, config_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from miles_core.api import PluginContext

_EXPERTS = r"(?P<experts>model\.layers\.\d+\.mlp\.experts)"


class Qwen3Moe:
    """Bridge of ``Qwen3MoeForCausalLM``."""

    mapping = NameMapping(
        stacks=(
            Stack(
                rf"{_EXPERTS}\.gate_up_proj",
                ("{experts}.{expert}.gate_proj.weight", "{experts}.{expert}.up_proj.weight"),
            ),
            Stack(rf"{_EXPERTS}\.down_proj", ("{experts}.{expert}.down_proj.weight",)),
        ),
        tied=EMBEDDINGS,
    )

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """The routing shape; ``None`` if the config makes every layer dense.

        Raises:
            ConfigError: if the config lacks its layer or expert counts.
        """
        layers = config_int(hf_config, "num_hidden_layers")
        # Published checkpoints say num_experts; transformers 5 writes num_local_experts.
        experts = config_int(hf_config, "num_experts", "num_local_experts")
        dense = set(hf_config.get("mlp_only_layers") or ())
        step = hf_config.get("decoder_sparse_step", 1)
        ids = tuple(i for i in range(layers) if i not in dense and experts > 0 and (i + 1) % step == 0)
        if not ids:
            return None
        return RoutingSpec(layers, ids, experts, config_int(hf_config, "num_experts_per_tok"))

    def build(self, model_path: str, *, dtype: str, init: str, seed: int) -> Any:
        """The model; see :func:`~miles_plugins.bridges.hugging_face.build_model`."""
        return build_model("Qwen3MoeForCausalLM", model_path, dtype=dtype, init=init, seed=seed)

    def replay_points(self, model: Any) -> Sequence[ReplayPoint]:
        """The MoE layers in order."""
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

        blocks = [(layer_id, layer.mlp) for layer_id, layer in enumerate(model.get_decoder().layers)]
        return tuple(
            ReplayPoint(layer_id, block.gate, block.experts, partial(softmax_weights, block.gate.norm_topk_prob))
            for layer_id, block in blocks
            if isinstance(block, Qwen3MoeSparseMoeBlock)
        )


def softmax_weights(renormalise: bool, logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Expert weights ``[tokens, top_k]`` for given ``indices``, as ``Qwen3MoeTopKRouter`` computes its own.

    Softmax over all experts in float32, gather, divide by the sum if ``renormalise``, cast to the logits' type.
    """
    import torch

    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, indices)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(logits.dtype)
