"""Qwen3 MoE."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from miles_plugins.bridges.hf_config import config_int, num_layers, routing_of
from miles_plugins.bridges.moe import MoeBridge
from miles_plugins.bridges.router_weights import softmax_weights
from miles_plugins.bridges.sglang_names import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import RoutingSpec
    from miles_plugins.bridges.moe import Weights


class Qwen3Moe(MoeBridge):
    """Bridge of ``Qwen3MoeForCausalLM``."""

    architecture = "Qwen3MoeForCausalLM"
    engine_mappings: ClassVar = {"sglang": EXPERTS}

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """Layers are dense by ``mlp_only_layers`` and ``decoder_sparse_step``, or all of them without experts.

        Raises:
            ConfigError: if the config lacks or contradicts its layer or expert counts.
        """
        # Published checkpoints say num_experts; transformers 5 writes num_local_experts.
        experts = config_int(hf_config, "num_experts", "num_local_experts")
        dense = set(hf_config.get("mlp_only_layers") or ())
        step = config_int({"decoder_sparse_step": 1, **hf_config}, "decoder_sparse_step", at_least=1)
        layers = range(num_layers(hf_config))
        ids = [i for i in layers if i not in dense and experts > 0 and (i + 1) % step == 0]
        return routing_of(hf_config, ids, experts)

    def weights(self, router: Any) -> Weights:
        """As ``Qwen3MoeTopKRouter``."""
        return partial(softmax_weights, renormalise=router.norm_topk_prob)
