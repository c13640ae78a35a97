"""From a config to plugins: which ones a run uses, checked before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError
from miles_core.kinds.base import PluginContext
from miles_core.plugins.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from miles_core.config.load import LoadedConfig
    from miles_core.config.schema import Config, PluginTable
    from miles_core.kinds.model_bridges import ModelBridge
    from miles_core.types import Layout, RoutingSpec


@dataclass(frozen=True, eq=False)
class Wiring:
    """A loaded config, its hub, and the model directory that both speak of."""

    loaded: LoadedConfig
    hub: Hub
    run_dir: Path
    model: ModelFacts

    @property
    def config(self) -> Config:
        """The config."""
        return self.loaded.config

    def context(self, **services: Any) -> PluginContext:
        """A plugin's context in this process."""
        services.setdefault("base_dir", self.loaded.base_dir)
        return PluginContext(run_dir=self.run_dir, seed=self.config.run.seed, services=services)

    def build(self, kind: str, table: PluginTable, **services: Any) -> Any:
        """Make the plugin that a table names."""
        return self.hub.build(kind, table, self.context(**services))


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """What ``config.json`` of the model directory says, through its bridge."""

    path: Path
    bridge_name: str
    bridge: ModelBridge
    hf_config: dict[str, Any]
    routing: RoutingSpec | None

    def layout(self, tensors: Mapping[str, torch.Tensor]) -> Layout:
        """Where the checkpoint tensors live in a built model's parameters and persistent buffers."""
        from miles_core.weights.layout import build_layout, is_tied

        mapping = self.bridge.mapping
        # Some configs leave the key out; then the built model tells.
        tied = bool(self.hf_config.get("tie_word_embeddings", is_tied(mapping, tensors)))
        return build_layout(mapping, tensors, tie_word_embeddings=tied)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.hf_config["vocab_size"])

    @property
    def context_length(self) -> int:
        """Positions that the model knows."""
        return int(self.hf_config["max_position_embeddings"])


def wire(loaded: LoadedConfig, run_dir: Path) -> Wiring:
    """Find the plugins of a config and read its model directory.

    Raises:
        ConfigError: if the model directory is not one.
        PluginError: if a plugin is missing.
    """
    hub = Hub.discover(block=loaded.config.plugins.block)
    model = read_model(hub, loaded.resolve(loaded.config.model.path), loaded.config.model.bridge)
    return Wiring(loaded, hub, run_dir, model)


def read_model(hub: Hub, path: Path, bridge: str | None = None) -> ModelFacts:
    """Read a model directory with the bridge of its architecture.

    Raises:
        ConfigError: if ``config.json`` is missing or names no architecture.
    """
    file = path / "config.json"
    if not file.is_file():
        raise ConfigError(
            f"no model in {path}: expected a config.json",
            remedy="Set model.path to a local Hugging Face model directory; it is relative to the config file.",
        )
    hf_config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    architectures = hf_config.get("architectures") or []
    if bridge is None and not architectures:
        raise ConfigError(f"{file} names no architecture", remedy="Set model.bridge to the bridge to use.")
    name = bridge or architectures[0]
    made = hub.create("model_bridges", name, hub.configure("model_bridges", name), PluginContext())
    return ModelFacts(path, name, made, hf_config, made.routing_spec(hf_config))


def plugin_tables(config: Config) -> list[tuple[str, PluginTable]]:
    """Every plugin that a config names, by kind, in the order of the file."""
    return [
        ("data_sources", config.data),
        *(("environments", table) for table in config.environments),
        *(("reward_models", table) for table in config.rewards),
        *(("filters", table) for table in config.filters),
        ("advantage_estimators", config.advantage),
        *(("losses", table) for table in config.losses),
        ("engines", config.engine),
        *(("router_middlewares", table) for table in config.router.middleware),
        ("train_backends", config.train),
        ("weight_transports", config.weights),
        *(("trackers", table) for table in config.trackers),
    ]


def check_plugins(wiring: Wiring) -> list[dict[str, Any]]:
    """Load every plugin of the config and validate its options; returns the plugin lock.

    Raises:
        MilesError: before the run starts, naming table and plugin.
    """
    lock = [{"kind": "model_bridges", **_entry(wiring.hub, "model_bridges", wiring.model.bridge_name)}]
    for kind, table in plugin_tables(wiring.config):
        wiring.hub.configure(kind, table)
        lock.append({"kind": kind, **_entry(wiring.hub, kind, table.use)})
    return lock


def _entry(hub: Hub, kind: str, use: str) -> dict[str, Any]:
    ref = asdict(hub.resolve(kind, use))
    return {"use": use, **{key: ref[key] for key in ("name", "target", "distribution", "version")}}
