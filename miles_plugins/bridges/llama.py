"""Llama, and what shares its architecture, such as SmolLM2: modules and checkpoint have the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import NameMapping
from miles_plugins.bridges.hugging_face import EMBEDDINGS, build_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.api import PluginContext, ReplayPoint, RoutingSpec


class Llama:
    """Bridge of ``LlamaForCausalLM``."""

    mapping = NameMapping(tied=EMBEDDINGS)

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """``None``: nothing is routed."""
        return None

    def build(self, model_path: str, *, dtype: str, init: str, seed: int) -> Any:
        """The model; see :func:`~miles_plugins.bridges.hugging_face.build_model`."""
        return build_model("LlamaForCausalLM", model_path, dtype=dtype, init=init, seed=seed)

    def replay_points(self, model: Any) -> Sequence[ReplayPoint]:
        """Empty: nothing is routed."""
        return ()
