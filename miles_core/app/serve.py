"""The mains of the serving processes: the embedded engine and the router."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.app.child import child_process
from miles_core.app.http_server import bind, run_server
from miles_core.app.wiring import read_model
from miles_core.errors import EngineError, RouterError
from miles_core.kinds.base import PluginContext
from miles_core.plugins.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from miles_core.config.schema import Config


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to serve a model with the embedded engine; ``None`` means the model's own."""

    model_path: Path
    host: str = "127.0.0.1"
    port: int = 0
    dtype: str | None = None
    threads: int = 1
    max_running_requests: int = 256
    context_length: int | None = None
    transport: str = "memory"
    weight_version: int = 0
    seed: int = 0


def serve_engine(options: EngineOptions) -> None:
    """Serve one model until the process is told to end.

    Raises:
        EngineError: if the port is in use.
        ConfigError: if the model directory is not one.
    """
    with child_process():
        bound = bind(options.host, options.port, EngineError, "engine")
        app = _engine_app(options)
        run_server(app, bound)


def _engine_app(options: EngineOptions) -> Any:
    import torch

    from miles_core.engine.embedded.engine import EmbeddedEngine
    from miles_core.engine.embedded.server import create_app
    from miles_core.engine.embedded.settings import EngineSettings
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.weights.receive import WeightReceiver
    from miles_core.weights.routes import routes

    torch.set_num_threads(options.threads)
    hub = Hub.discover()
    facts = read_model(hub, options.model_path)
    dtype = options.dtype or facts.hf_config.get("dtype") or facts.hf_config.get("torch_dtype") or "float32"
    model = facts.bridge.build(str(options.model_path), dtype=dtype, init="pretrained", seed=0)
    settings = EngineSettings(
        context_length=min(options.context_length or facts.context_length, facts.context_length),
        max_running_requests=options.max_running_requests,
        weight_version=str(options.weight_version),
        model_path=str(options.model_path),
        seed=options.seed,
    )
    tokenizer = ChatTokenizer.load(options.model_path).tokenizer
    engine = EmbeddedEngine(
        model, tokenizer, settings, replay_points=facts.bridge.replay_points(model), routing=facts.routing
    )
    parameters = engine.parameters()
    context = PluginContext(services={"base_dir": options.model_path})
    config = hub.configure("weight_transports", options.transport)
    transport = hub.create("weight_transports", options.transport, config, context)
    receiver = WeightReceiver(facts.layout(parameters), parameters, transport, engine, version=options.weight_version)
    return create_app(engine, routes(receiver))


def serve_router(config: Config, workers: Sequence[str], context: PluginContext) -> None:
    """Serve the router in front of ``workers`` until the process is told to end.

    Raises:
        RouterError: if the port is in use or a worker's URL is malformed.
    """
    from miles_core.router.app import create_app
    from miles_core.router.settings import RouterSettings

    with child_process():
        table = config.router
        hub = Hub.discover(block=config.plugins.block)
        middlewares = []
        for entry in table.middleware:
            options = hub.configure("router_middlewares", entry)
            wrap = partial(_wrap, hub, entry.use, options, context)
            middlewares.append((entry.use, wrap))
        bound = bind(table.host, table.port, RouterError, "router")
        app = create_app(workers, RouterSettings(policy=table.policy), middlewares)
        run_server(app, bound, lifespan="on")


def _wrap(hub: Hub, use: str, config: Any, context: PluginContext, app: Any) -> Any:
    return hub.create("router_middlewares", use, config, context, app)
