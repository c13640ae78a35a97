"""Two tiny models with their bridges: one dense, one whose layers are mixtures of experts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.kinds import PluginContext
from miles_core.plugins.hub import Hub
from miles_core.testing.tiny_config import tiny_config, write_config
from miles_core.testing.toy_tokenizer import save_tokenizer, toy_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.kinds.model_bridges import ModelBridge
    from miles_core.types import RoutingSpec

DENSE, MOE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"


@dataclass(frozen=True)
class ToyModel:
    """A model directory with config and tokenizer but no weights, and the bridge that builds it."""

    path: Path
    bridge: ModelBridge
    routing: RoutingSpec | None

    def build(self, *, seed: int = 0, dtype: str = "float32") -> Any:
        """The Hugging Face model, its weights drawn from ``seed``."""
        return self.bridge.build(str(self.path), dtype=dtype, init="random", seed=seed)


@dataclass(frozen=True)
class ToyModels:
    """``dense`` and ``moe`` (three layers, six experts, two of them per token), of one vocabulary."""

    dense: ToyModel
    moe: ToyModel


def make_toy_models(folder: Path, hub: Hub | None = None) -> ToyModels:
    """Write both model directories into ``folder``."""
    hub = hub or Hub.discover()
    tokenizer = toy_tokenizer()

    def make(architecture: str) -> ToyModel:
        config = tiny_config(architecture)
        path = write_config(folder / architecture, config)
        save_tokenizer(tokenizer, path)
        bridge = hub.create("model_bridges", f"miles-hub/{architecture}", None, PluginContext())
        return ToyModel(path, bridge, bridge.routing_spec(json.loads((path / "config.json").read_text("utf-8"))))

    return ToyModels(make(DENSE), make(MOE))
