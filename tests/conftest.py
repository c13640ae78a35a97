"""Fixtures that every test may use: a config file, and servers on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

MINIMAL = """
[run]
steps = 3

[model]
path = "model"

[data]
use = "jsonl"
path = "tasks.jsonl"

[rollout]
groups_per_step = 2
group_size = 4
max_context_tokens = 64
max_response_tokens = 16

[[environments]]
use = "lookup"

[[rewards]]
use = "exact_match"
ignore_case = true

[[rewards]]
use = "my_rewards:short"
"""


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio: uvicorn and aiohttp need it."""
    return "asyncio"


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Writes the smallest valid config, with text replaced or appended."""

    def write(*replacements: tuple[str, str], extra: str = "") -> Path:
        text = MINIMAL
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "run.toml"
        path.write_text(text + extra)
        return path

    return write


class LoopbackServer(uvicorn.Server):
    """uvicorn in the test's own loop, started and stopped by events."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self.url = url
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.stop.wait()


@asynccontextmanager
async def _serving(app: Any, port: int = 0) -> AsyncIterator[LoopbackServer]:
    options = {"log_level": "error", "server_header": False, "date_header": False, "timeout_graceful_shutdown": 1}
    with socket.create_server(("127.0.0.1", port)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = LoopbackServer(uvicorn.Config(app, lifespan="on", **options), url)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server._serve([listener]))
            try:
                await server.ready.wait()
                yield server
            finally:
                server.stop.set()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """``async with serving(app) as server``; it listens at ``server.url`` until the block ends or ``server.stop``."""
    return _serving
