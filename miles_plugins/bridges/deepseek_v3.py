"""DeepSeek-V3, and what shares its router: sigmoid scores, groups of experts, a correction bias that chooses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.api import ConfigError
from miles_plugins.bridges.hf_config import config_int, num_layers, routing_of
from miles_plugins.bridges.moe import MoeBridge
from miles_plugins.bridges.router_weights import sigmoid_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import RoutingSpec
    from miles_plugins.bridges.moe import Weights


class DeepseekV3(MoeBridge):
    """Bridge of ``DeepseekV3ForCausalLM``."""

    architecture = "DeepseekV3ForCausalLM"

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """The first ``first_k_dense_replace`` layers are dense.

        Raises:
            ConfigError: if the config lacks or contradicts its layer or expert counts or its groups.
        """
        # transformers has no such key: it would build MoE layers where an engine that knows it runs dense ones.
        if hf_config.get("moe_layer_freq", 1) != 1:
            raise ConfigError(
                f"moe_layer_freq in config.json must be 1 for {self.architecture}; got {hf_config['moe_layer_freq']!r}",
                remedy="Use a checkpoint whose layers are all MoE from first_k_dense_replace on.",
            )
        # Published checkpoints and transformers 5 say n_routed_experts; the class also knows num_local_experts.
        experts = config_int(hf_config, "n_routed_experts", "num_local_experts", at_least=1)
        dense = config_int(hf_config, "first_k_dense_replace")
        spec = routing_of(hf_config, range(dense, num_layers(hf_config)), experts)
        if spec is not None:
            _check_groups(hf_config, spec)
        return spec

    def weights(self, router: Any) -> Weights:
        """As ``DeepseekV3TopkRouter``."""
        return partial(sigmoid_weights, renormalise=router.norm_topk_prob, scale=router.routed_scaling_factor)


def _check_groups(hf_config: Mapping[str, Any], spec: RoutingSpec) -> None:
    """The router keeps the ``topk_group`` best of ``n_group`` groups, each scored by its two best experts."""
    groups = config_int(hf_config, "n_group", at_least=1)
    kept = config_int(hf_config, "topk_group", at_least=1)
    size, rest = divmod(spec.num_experts, groups)
    if rest or size < 2 or kept > groups or kept * size < spec.top_k:
        raise ConfigError(
            f"config.json cannot route {spec.num_experts} experts to {spec.top_k} from {kept} (topk_group) of {groups} "
            "groups (n_group): groups must be equal, of two experts or more, and those kept must hold the top-k",
            remedy="Use the config.json that belongs to the checkpoint.",
        )
