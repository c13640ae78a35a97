"""What can be wrong with a run, found before its folder is made and before any process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from miles_core.app.context import trajectory_tokens
from miles_core.app.functions import check_functions
from miles_core.app.plugin_calls import calls_into
from miles_core.app.session_server import check_agents
from miles_core.app.transports import AUTO, check_transport
from miles_core.app.warmup import read_conversations
from miles_core.engine.prompt import KEPT_BACK, usable_context
from miles_core.errors import ConfigError, DataError
from miles_core.plugins.lock import lock_of
from miles_core.rollout.tasks import TaskStream

if TYPE_CHECKING:
    from miles_core.app.wiring import Wiring
    from miles_core.config.schema import Config, DataTable
    from miles_core.config.tables import PluginTable
    from miles_core.plugins.lock import PluginLock


def check_run(wiring: Wiring) -> list[dict[str, Any]]:
    """Load every plugin of the config, validate its options, and read the first task; returns the plugin lock.

    Raises:
        MilesError: naming table and plugin, or file and line; or what a plugin rejects the config with.
    """
    for kind, table in plugin_tables(wiring.config):
        wiring.hub.configure(kind, table)
    for environment in wiring.config.environments:
        if environment.adapter is not None:  # the adapter's object is cheap: it calls the function per episode
            wiring.build("environments", environment)
    check_functions(wiring.config)
    check_agents(wiring)
    for server in wiring.config.engine.servers:  # [[engine.groups]] have options of their own
        options = wiring.hub.configure("engines", server)
        _check_context(wiring, getattr(options, "context_length", None))
        engine = wiring.build("engines", server)
        if hasattr(engine, "check"):
            engine.check()
    check_transport(wiring)
    _check_data(wiring, wiring.config.data, "data")
    if wiring.config.eval is not None:
        _check_data(wiring, wiring.config.eval.data, "eval.data")
    if wiring.config.warmup is not None:
        read_conversations(wiring.loaded.resolve(wiring.config.warmup.data))
    wiring.hooks.act("miles_config_loaded", config=wiring.config.model_copy(deep=True))
    return lock_of_run(wiring).to_json()


def lock_of_run(wiring: Wiring) -> PluginLock:
    """The plugin lock of a config: its model's bridge, then the plugins that its tables name."""
    tables = plugin_tables(wiring.config)
    uses = [("model_bridges", wiring.model.bridge_name), *((kind, table.use) for kind, table in tables)]
    return lock_of(wiring.hub, uses)


def plugin_tables(config: Config) -> list[tuple[str, PluginTable]]:
    """Every plugin that a config names, by kind, in the order of the file."""
    return [
        ("data_sources", config.data),
        *([("data_sources", config.eval.data)] if config.eval is not None else []),
        *(("environments", table) for table in config.environments),
        *(("reward_models", table) for table in config.rewards),
        *(("filters", table) for table in config.filters),
        ("advantage_estimators", config.advantage),
        *(("losses", table) for table in config.losses),
        ("engines", config.engine),
        *(("router_middlewares", table) for table in config.router.middleware),
        ("train_backends", config.train),
        *([("weight_transports", config.weights)] if config.weights.use != AUTO else []),
        *(("trackers", table) for table in config.trackers),
    ]


def _check_data(wiring: Wiring, table: DataTable, key: str) -> None:
    stream = TaskStream(wiring.source(table), timeout=table.timeout, calls=calls_into(wiring, "data_sources", table))
    taken, error = anyio.run(stream.take, 1)
    if error is not None:
        raise error
    if not taken:
        raise DataError(f"the data of [{key}] holds no task", remedy=f"Correct {key}, or the files that it names.")


def _check_context(wiring: Wiring, served: int | None) -> None:
    """An engine that serves less than a trajectory may have would fail the long ones, in the midst of the run."""
    needed = trajectory_tokens(wiring)
    if served is not None and usable_context(served) < needed:
        raise ConfigError(
            f"engine.context_length = {served} leaves {usable_context(served)} tokens for a trajectory, since engines "
            f"keep {KEPT_BACK} back; one may have {needed} tokens (the lesser of rollout.max_context_tokens and what "
            "engines use of the model's own context)",
            remedy=f"Set engine.context_length to {needed + KEPT_BACK} or more, or lower rollout.max_context_tokens.",
        )
