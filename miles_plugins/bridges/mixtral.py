"""Mixtral: checkpoints call the MoE block and the projections of its experts otherwise than the modules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.api import NameMapping, Part, Rule
from miles_plugins.bridges.hf_config import routing_of_every_layer
from miles_plugins.bridges.hugging_face import EMBEDDINGS
from miles_plugins.bridges.moe import MoeBridge
from miles_plugins.bridges.router_weights import softmax_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import RoutingSpec
    from miles_plugins.bridges.moe import Weights

_LAYER = "model.layers.{layer}"
_EXPERT = f"{_LAYER}.block_sparse_moe.experts.{{expert}}"


class Mixtral(MoeBridge):
    """Bridge of ``MixtralForCausalLM``."""

    architecture = "MixtralForCausalLM"
    mapping = NameMapping(
        rules=(
            Rule(
                f"{_LAYER}.mlp.experts.gate_up_proj",
                (Part(f"{_EXPERT}.w1.weight", split=0), Part(f"{_EXPERT}.w3.weight", split=0)),
                stacked=True,
            ),
            Rule(f"{_LAYER}.mlp.experts.down_proj", (Part(f"{_EXPERT}.w2.weight", split=1),), stacked=True),
            Rule(f"{_LAYER}.mlp.gate.weight", (Part(f"{_LAYER}.block_sparse_moe.gate.weight"),)),
        ),
        tied=EMBEDDINGS,
    )

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """Every layer is MoE.

        Raises:
            ConfigError: if the config lacks or contradicts its layer or expert counts.
        """
        return routing_of_every_layer(hf_config)

    def weights(self, router: Any) -> Weights:
        """As ``MixtralTopKRouter``."""
        return partial(softmax_weights, renormalise=True, keep_float32=True)
