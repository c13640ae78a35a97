"""Engines behind a router, as child processes, and a client that reaches them."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from miles_core.app.processes import Child, child
from miles_core.engine.batching import BatchingClient
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, RouterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.kinds.engines import EngineClient


@dataclass(frozen=True, eq=False)
class Serving:
    """Running engines; generate through ``client``, update weights at ``engine_urls``."""

    children: tuple[Child, ...]
    engine_urls: tuple[str, ...]
    http: aiohttp.ClientSession
    client: EngineClient


@asynccontextmanager
async def serving(wiring: Wiring, config_file: Path, model_path: Path) -> AsyncIterator[Serving]:
    """Start the engines of a config on a checkpoint, and the router before them; logs go to the run's folder.

    Raises:
        EngineError: if an engine cannot start.
        RouterError: if the router cannot.
    """
    model = wiring.model
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(_engine(wiring, config_file, model_path, index))
            for index in range(len(wiring.config.engine.servers))
        ]
        router = await stack.enter_async_context(_router(wiring, config_file, engines))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        single = HttpEngineClient(
            router.ready["url"],
            http,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            routing=model.routing,
        )
        client = await stack.enter_async_context(BatchingClient(single, engines=len(engines)))
        yield Serving((router, *engines), tuple(engine.ready["url"] for engine in engines), http, client)


def _engine(wiring: Wiring, config_file: Path, model_path: Path, index: int) -> AbstractAsyncContextManager[Child]:
    table = wiring.config.engine.servers[index]
    engine = wiring.build("engines", table)
    command = engine.command(str(model_path), index=index, config_path=str(config_file))
    return child(
        f"engine-{index}",
        command.argv,
        environment=command.environment,
        log=wiring.run_dir / "logs" / f"engine-{index}.log",
        error=EngineError,
        start_timeout=table.start_timeout,
    )


def _router(wiring: Wiring, config_file: Path, engines: Sequence[Child]) -> AbstractAsyncContextManager[Child]:
    workers = [option for engine in engines for option in ("--worker", engine.ready["url"])]
    return child(
        "router",
        [sys.executable, "-m", "miles_core.cli", "serve", "router", "--config", str(config_file), *workers],
        log=wiring.run_dir / "logs" / "router.log",
        error=RouterError,
        start_timeout=wiring.config.engine.start_timeout,
    )
