"""The mains of the serving processes: the embedded engine and the router."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.app.child import child_process, is_child
from miles_core.app.http_server import bind, run_server
from miles_core.app.plugin_lock import require_same_plugins
from miles_core.app.transports import transport_table, usable_transports
from miles_core.app.wiring import plugin_context, read_model
from miles_core.config.schema import PluginsTable, WeightsTable
from miles_core.config.serving import EngineTable
from miles_core.engine.embedded.plugin import Embedded
from miles_core.errors import ConfigError, EngineError, RouterError
from miles_core.kinds.base import PluginContext
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from miles_core.config.load import LoadedConfig
    from miles_core.config.tables import PluginTable
    from miles_core.plugins.lifecycle.hookspecs import Role


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine process serves and how; the defaults are those of a run.

    ``index`` is the engine's number in its run: it adds to the port and to the seed. ``config_file`` is that of a run.
    """

    model_path: Path
    engine: EngineTable = field(default_factory=EngineTable)
    weights: WeightsTable = field(default_factory=WeightsTable)
    bridge: str | None = None
    plugins: PluginsTable = field(default_factory=PluginsTable)
    index: int = 0
    context: PluginContext = field(default_factory=PluginContext)
    config_file: Path | None = None

    @classmethod
    def of_run(cls, loaded: LoadedConfig, model_path: Path, index: int) -> EngineSetup:
        """Engine number ``index`` of the run whose folder holds the config file."""
        config = loaded.config
        return cls(
            model_path,
            _server_table(config.engine, index),
            config.weights,
            config.model.bridge,
            config.plugins,
            index,
            plugin_context(loaded, loaded.path.parent),
            loaded.path,
        )


def _join_run(hub: Hub, plugins: PluginsTable, config_file: Path | None, role: Role, rank: int) -> None:
    """What every process of a run begins with; nothing where a person started this one."""
    if config_file is not None and is_child():
        require_same_plugins(hub, config_file, role)
        hooks = hub.hooks(plugins.hook_timeout, plugins.slow_call)
        hooks.observe_now("miles_process_started", role=role, rank=rank)


def serve_engine(setup: EngineSetup) -> None:
    """Serve one model until the process is told to end.

    Raises:
        EngineError: if the port is in use.
        ConfigError: if the model directory is not one, or an option of the engine is wrong.
    """
    with child_process():
        hub = Hub.discover(PluginPolicy.of(setup.plugins))
        _join_run(hub, setup.plugins, setup.config_file, "engine", setup.index)
        options = hub.configure("engines", setup.engine)
        if not isinstance(options, Embedded.Config):
            raise ConfigError(
                f'this command serves the embedded engine; the config says [engine] use = "{setup.engine.use}"',
                remedy='Set engine.use = "embedded", or start that engine by its own command.',
            )
        bound = bind(options.host, _port(options, setup.index), EngineError, "engine")
        app = _engine_app(setup, options, hub)
        run_server(app, bound)


def _server_table(table: EngineTable, index: int) -> EngineTable:
    if not table.groups:
        return table
    servers = table.servers
    if index >= len(servers):
        raise ConfigError(
            f"there is no engine {index}: [[engine.groups]] have {len(servers)} in all, counted from 0",
            remedy="Raise a group's count, or give a lower --index.",
        )
    return servers[index]


def _port(options: Embedded.Config, index: int) -> int:
    """Engines on one host cannot share a port."""
    port = options.port + index if options.port else 0
    if port > 65535:
        raise ConfigError(
            f"engine {index} would listen on port {port}; the highest is 65535",
            remedy="Lower engine.port, or set it to 0.",
        )
    return port


def _engine_app(setup: EngineSetup, options: Embedded.Config, hub: Hub) -> Any:
    import torch

    from miles_core.engine.embedded.engine import EmbeddedEngine
    from miles_core.engine.embedded.server import create_app
    from miles_core.engine.embedded.settings import EngineSettings
    from miles_core.lib.layout import parameter_table
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.weights.receive import WeightReceiver
    from miles_core.weights.routes import routes

    torch.set_num_threads(options.threads)
    path = str(setup.model_path)
    facts = read_model(hub, setup.model_path, setup.bridge)
    dtype = options.dtype or facts.hf_config.get("dtype") or facts.hf_config.get("torch_dtype") or "float32"
    model = facts.bridge.build(path, dtype=dtype, init="pretrained", seed=0)
    settings = EngineSettings(
        context_length=min(options.context_length or facts.context_length, facts.context_length),
        max_running_requests=options.max_running_requests,
        model_path=path,
        seed=setup.context.seed + setup.index,
        deterministic=options.deterministic,
    )
    tokenizer = ChatTokenizer.load(setup.model_path).tokenizer
    engine = EmbeddedEngine(
        model, tokenizer, settings, replay_points=facts.bridge.replay_points(model), routing=facts.routing
    )
    parameters = engine.parameters()

    def transport(name: str) -> Any:
        return hub.build("weight_transports", transport_table(hub, setup.weights, name), setup.context)

    receiver = WeightReceiver(parameter_table(parameters), parameters, transport, engine, version=0)
    usable = partial(usable_transports, hub, setup.weights.use)
    return create_app(engine, routes(receiver, usable), discarding=receiver.discarding)


def serve_router(loaded: LoadedConfig, workers: Sequence[str]) -> None:
    """Serve the router in front of ``workers`` until the process is told to end.

    Raises:
        RouterError: if the port is in use or a worker's URL is malformed.
    """
    from miles_core.router.app import create_app
    from miles_core.router.settings import RouterSettings

    with child_process():
        table = loaded.config.router
        hub = Hub.discover(PluginPolicy.of(loaded.config.plugins))
        _join_run(hub, loaded.config.plugins, loaded.path, "router", 0)
        context = plugin_context(loaded, loaded.path.parent)
        middlewares = [
            (hub.resolve("router_middlewares", entry.use).label, partial(_wrap, hub, entry, context))
            for entry in table.middleware
        ]
        bound = bind(table.host, table.port, RouterError, "router")
        app = create_app(workers, RouterSettings(policy=table.policy), middlewares)
        run_server(app, bound, lifespan="on")


def _wrap(hub: Hub, entry: PluginTable, context: PluginContext, app: Any) -> Any:
    return hub.build("router_middlewares", entry, context, app)
