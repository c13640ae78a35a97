"""Servers that benchmarks measure, each a child process that ends with its block."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.training import CONFIG
from miles_core.app.processes import child
from miles_core.errors import EngineError, MilesError, RouterError, SessionError

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


def worker(
    output_ids: Sequence[int], *, routed_experts: str | None = None, log: Path
) -> AbstractAsyncContextManager[str]:
    """An engine that answers every request with the same tokens, at once."""
    said = json.dumps({"output_ids": list(output_ids), "routed_experts": routed_experts})
    return _url("worker", [sys.executable, "-m", "benchmarks.worker", said], log, MilesError)


def sessions(url: str, model_path: Path, *, log: Path) -> AbstractAsyncContextManager[str]:
    """A session server in front of ``url``."""
    options = ["--url", url, "--model-path", str(model_path)]
    return _url("session", [sys.executable, "-m", "miles_core.cli", "serve", "session", *options], log, SessionError)


@asynccontextmanager
async def _url(name: str, argv: Sequence[str], log: Path, error: type[MilesError]) -> AsyncIterator[str]:
    async with child(name, argv, log=log, error=error, start_timeout=START_SECONDS) as process:
        yield process.ready["url"]
