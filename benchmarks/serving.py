"""Servers that benchmarks measure, each a child process that ends with its block."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.training import CONFIG
from miles_core.app.processes import child
from miles_core.errors import EngineError, MilesError, RouterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

START_SECONDS = 180.0


def engine(model_path: Path, *, dtype: str, log: Path) -> AbstractAsyncContextManager[str]:
    """An embedded engine that serves ``model_path`` on one thread; a context manager that gives its URL."""
    options = ["--model-path", str(model_path), "--dtype", dtype]
    return _url("engine", [sys.executable, "-m", "miles_core.cli", "serve", "engine", *options], log, EngineError)


def router(worker: str, *, log: Path) -> AbstractAsyncContextManager[str]:
    """The quickstart's router in front of ``worker``."""
    argv = [sys.executable, "-m", "miles_core.cli", "serve", "router", "--config", str(CONFIG), "--worker", worker]
    return _url("router", argv, log, RouterError)


def trivial_worker(*, log: Path) -> AbstractAsyncContextManager[str]:
    """A worker that answers every request with the same reply."""
    return _url("worker", [sys.executable, "-m", "benchmarks.worker"], log, MilesError)


@asynccontextmanager
async def _url(name: str, argv: Sequence[str], log: Path, error: type[MilesError]) -> AsyncIterator[str]:
    async with child(name, argv, log=log, error=error, start_timeout=START_SECONDS) as process:
        yield process.ready["url"]
