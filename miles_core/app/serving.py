"""Engines behind a router, as child processes, and a client that reaches them."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from miles_core.app.engine_check import EngineCheck
from miles_core.app.fleet import Fleet
from miles_core.app.fleet_client import FleetClient
from miles_core.app.processes import Child, child
from miles_core.app.router_workers import RouterWorkers
from miles_core.app.transports import transport_options
from miles_core.engine.batching import BatchingClient
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, RouterError
from miles_core.weights.salt import PrefixSalt
from miles_core.weights.transport_facts import OPTIONS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from miles_core.app.fleet_servers import Launch
    from miles_core.app.wiring import Wiring
    from miles_core.kinds.engines import EngineClient
    from miles_core.telemetry.progress import TrainingProgress


KEEP_ALIVE_SECONDS = 2.0
"""Less than uvicorn's 5: a request on a connection that the server just closes would fail."""


@dataclass(frozen=True, eq=False)
class Serving:
    """Running engines: generate through ``client``, update weights of ``fleet`` and renew ``salt`` with them."""

    fleet: Fleet
    router: Child
    http: aiohttp.ClientSession
    client: EngineClient
    engine_check: EngineCheck
    salt: PrefixSalt


@asynccontextmanager
async def serving(
    wiring: Wiring, config_file: Path, model_path: Path, progress: TrainingProgress, *, version: int = 0
) -> AsyncIterator[Serving]:
    """Start the engines of a config on a checkpoint, and the router before them; logs go to the run's folder.

    ``version`` is the committed policy version: engines that start hold version 0, and are behind where it is another.

    Raises:
        EngineError: if an engine cannot start, or is not one that the run can use.
        RouterError: if the router cannot.
    """
    model, tables = wiring.model, wiring.config.engine.servers
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))
        )
        engine_check = EngineCheck.of_run(wiring, http)
        launches = [(f"engine-{i}", _launch(wiring, config_file, model_path, i)) for i in range(len(tables))]
        max_restarts = wiring.config.engine.max_restarts

        async def on_lost(url: str, error: str) -> None:
            await wiring.hooks.observe("miles_engine_lost", url=url, error=error)

        fleet = Fleet(
            launches,
            engine_check,
            version=version,
            max_restarts=max_restarts,
            patience=wiring.config.weights.patience,
            on_lost=on_lost,
        )
        await stack.enter_async_context(fleet.running())
        router = await stack.enter_async_context(_router(wiring, config_file))
        await fleet.open(RouterWorkers(router.ready["url"], http), progress.waiting)
        salt = PrefixSalt()
        single = HttpEngineClient(
            router.ready["url"],
            http,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            routing=model.routing,
            extra_key=lambda: salt.current,
        )
        client = await stack.enter_async_context(BatchingClient(single, engines=len(tables)))
        yield Serving(fleet, router, http, FleetClient(client, fleet, model.routing), engine_check, salt)


def _launch(wiring: Wiring, config_file: Path, model_path: Path, index: int) -> Launch:
    table = wiring.config.engine.servers[index]
    command = wiring.build("engines", table).command(str(model_path), index=index, config_path=str(config_file))
    told = {OPTIONS_VARIABLE: json.dumps(transport_options(wiring.hub, wiring.config.weights), default=str)}

    def launch(on_progress: Callable[[str], None]) -> AbstractAsyncContextManager[Child]:
        return child(
            f"engine-{index}",
            command.argv,
            environment={**told, **command.environment},
            log=wiring.run_dir / "logs" / f"engine-{index}.log",
            error=EngineError,
            start_timeout=table.start_timeout,
            on_progress=on_progress,
        )

    return launch


def _router(wiring: Wiring, config_file: Path) -> AbstractAsyncContextManager[Child]:
    return child(
        "router",
        [sys.executable, "-m", "miles_core.cli", "serve", "router", "--config", str(config_file)],
        log=wiring.run_dir / "logs" / "router.log",
        error=RouterError,
        start_timeout=wiring.config.engine.start_timeout,
    )
