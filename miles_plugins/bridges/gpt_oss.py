"""gpt-oss: checkpoints hold the experts stacked, transposed and with biases, as the modules do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import NameMapping
from miles_plugins.bridges.hf_config import routing_of_every_layer
from miles_plugins.bridges.hugging_face import EMBEDDINGS
from miles_plugins.bridges.moe import MoeBridge
from miles_plugins.bridges.router_weights import chosen_softmax_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import RoutingSpec
    from miles_plugins.bridges.moe import Weights


class GptOss(MoeBridge):
    """Bridge of ``GptOssForCausalLM``; its attention sinks leave ``eager`` as the one implementation for a CPU."""

    architecture = "GptOssForCausalLM"
    attention = "eager"
    router = "router"
    mapping = NameMapping(tied=EMBEDDINGS)

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """Every layer is MoE.

        Raises:
            ConfigError: if the config lacks or contradicts its layer or expert counts.
        """
        return routing_of_every_layer(hf_config)

    def weights(self, router: Any) -> Weights:
        """As ``GptOssTopKRouter``."""
        return chosen_softmax_weights
