"""From a config to plugins and to the facts of its model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.app.plugin_lock import require_same_plugins
from miles_core.config.load import load_config
from miles_core.config.tables import PluginTable
from miles_core.errors import ConfigError, WeightSyncError
from miles_core.kinds.base import PluginContext
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.lib.plugin_calls import CallLog
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from miles_core.config.load import LoadedConfig
    from miles_core.config.schema import Config
    from miles_core.kinds.data_sources import DataSource
    from miles_core.kinds.model_bridges import ModelBridge
    from miles_core.plugins.lifecycle.hooks import Hooks
    from miles_core.plugins.lifecycle.hookspecs import Role
    from miles_core.types import Layout, NameMapping, ParameterTable, RoutingSpec


@dataclass(frozen=True, eq=False)
class Wiring:
    """A loaded config, its hub, the model directory that both speak of, and the hooks and calls of this process."""

    loaded: LoadedConfig
    hub: Hub
    run_dir: Path
    model: ModelFacts
    hooks: Hooks
    calls: CallLog = field(default_factory=CallLog)

    @property
    def config(self) -> Config:
        """The config."""
        return self.loaded.config

    def rewired(self, config_file: Path, run_dir: Path) -> Wiring:
        """The same plugins and model, with the resolved config that the processes of a run read from its folder."""
        return replace(self, loaded=load_config(config_file), run_dir=run_dir)

    def context(self, **services: Any) -> PluginContext:
        """A plugin's context in this process; ``config`` is the resolved config, as plain dictionaries."""
        services.setdefault("config", self.config.model_dump(mode="json", exclude_none=True))
        return plugin_context(self.loaded, self.run_dir, **services)

    def build(self, kind: str, table: PluginTable, **services: Any) -> Any:
        """Make the plugin that a table names."""
        return self.hub.build(kind, table, self.context(**services))

    def source(self, table: PluginTable, seed: int | None = None) -> DataSource:
        """Make the data source of a table, with the run's seed or another; it may make others of nested tables."""

        def build_source(options: Mapping[str, Any]) -> DataSource:
            return self.source(PluginTable.model_validate(options), seed)

        context = self.context(build_source=build_source)
        context = context if seed is None else replace(context, seed=seed)
        made: DataSource = self.hub.build("data_sources", table, context)
        return made


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """What ``config.json`` of the model directory says, through its bridge.

    ``vocab_size`` is the rows of the embedding, ``context_length`` the positions that the model knows.
    """

    path: Path
    bridge_name: str
    bridge: ModelBridge
    hf_config: dict[str, Any]
    routing: RoutingSpec | None
    vocab_size: int
    context_length: int

    def layout(self, tensors: Mapping[str, torch.Tensor]) -> Layout:
        """Where the checkpoint tensors live in a built model's parameters and persistent buffers."""
        return build_layout(self.bridge.mapping, parameter_table(tensors), self.hf_config)

    @property
    def mappings(self) -> Mapping[str, NameMapping]:
        """The bridge's mappings by naming."""
        return {"torch": self.bridge.mapping, **getattr(self.bridge, "engine_mappings", {})}

    def layout_of(self, table: ParameterTable, source: Layout) -> Layout:
        """Where they live in one rank of an engine, of those that ``source`` holds.

        Raises:
            WeightSyncError: if the bridge does not know how this engine names its parameters.
        """
        if table.naming not in self.mappings:
            raise WeightSyncError(
                f"the bridge {self.bridge_name} does not say how {table.naming} names and divides the parameters; it "
                f"knows {', '.join(self.mappings)}",
                remedy='Set [weights] use = "disk", which the engine loads by itself, or add engine_mappings to the '
                "bridge.",
            )
        return build_layout(self.mappings[table.naming], table, self.hf_config, source.tensors)


def wire(loaded: LoadedConfig, run_dir: Path, role: Role = "driver") -> Wiring:
    """Find the plugins of a config and read its model directory.

    Raises:
        ConfigError: if the model directory is not one, or its ``config.json`` is broken.
        PluginError: if a plugin is missing, or another process than the driver finds others than the driver did.
    """
    hub = Hub.discover(PluginPolicy.of(loaded.config.plugins))
    if role != "driver":
        require_same_plugins(hub, loaded.path, role)
    hooks = hub.hooks(loaded.config.plugins.hook_timeout, loaded.config.plugins.slow_call)
    model = read_model(hub, loaded.resolve(loaded.config.model.path), loaded.config.model.bridge)
    calls = CallLog(loaded.config.plugins.slow_call)
    return Wiring(loaded, hub, run_dir, model, hooks, calls)


def plugin_context(loaded: LoadedConfig, run_dir: Path, **services: Any) -> PluginContext:
    """What plugins of a config get in this process."""
    services.setdefault("base_dir", loaded.base_dir)
    return PluginContext(run_dir=run_dir, seed=loaded.config.run.seed, services=services)


def read_model(hub: Hub, path: Path, bridge: str | None = None) -> ModelFacts:
    """Read a model directory with the bridge of its architecture, or the one that is given.

    Raises:
        ConfigError: if ``config.json`` is missing, broken, or lacks what every run needs.
        PluginError: if there is no such bridge.
    """
    file = path / "config.json"
    hf_config = _read_config(file)
    name = bridge or _architecture(hf_config, file)
    made = hub.create("model_bridges", name, hub.configure("model_bridges", name), PluginContext())
    return ModelFacts(
        path=path,
        bridge_name=name,
        bridge=made,
        hf_config=hf_config,
        routing=made.routing_spec(hf_config),
        vocab_size=_count(hf_config, "vocab_size", file),
        context_length=_count(hf_config, "max_position_embeddings", file),
    )


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ConfigError(
            f"no model in {file.parent}: expected a config.json",
            remedy="Set model.path to a local Hugging Face model directory; it is relative to the config file.",
        )
    try:
        hf_config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} must be JSON; it cannot be read: {error}", remedy="Restore the file.") from None
    if not isinstance(hf_config, dict):
        raise ConfigError(f"{file} must hold a JSON object; got {type(hf_config).__name__}", remedy="Restore the file.")
    return hf_config


def _architecture(hf_config: Mapping[str, Any], file: Path) -> str:
    match hf_config.get("architectures"):
        case [str(first), *_]:
            return first
        case other:
            raise ConfigError(
                f"{file} must name an architecture; got architectures = {other!r}",
                remedy="Set model.bridge to the bridge to use.",
            )


def _count(hf_config: Mapping[str, Any], key: str, file: Path) -> int:
    value = hf_config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{file}: {key} must be a positive integer; got {value!r}",
            remedy="Use the config.json that belongs to the model's weights.",
        )
    return value
