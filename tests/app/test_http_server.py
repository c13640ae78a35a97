"""Serving: a bound socket that answers without delay, or a clear error."""

from __future__ import annotations

import socket
import sys

import aiohttp
import pytest

from miles_core.app.http_server import bind
from miles_core.app.processes import child
from miles_core.errors import EngineError

SERVER = """
import socket
from miles_core.app.child import child_process
from miles_core.app.http_server import bind, run_server
from miles_core.errors import EngineError

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

with child_process():
    run_server(app, bind("127.0.0.1", 0, EngineError, "engine"), lifespan="off")
"""


def test_a_port_in_use_says_which_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EngineError, match=f"the engine cannot listen on 127.0.0.1:{port}: Address already"
        ) as caught:
            bind("127.0.0.1", port, EngineError, "engine")
    assert "0 for any free one" in (caught.value.remedy or "")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(EngineError, match=r"cannot listen on 203\.0\.113\.1"):
        bind("203.0.113.1", 0, EngineError, "engine")


def test_the_socket_names_its_protocol() -> None:
    """asyncio sets TCP_NODELAY only then; without it every answer of two writes waits for a delayed acknowledgement."""
    with bind("127.0.0.1", 0, EngineError, "engine") as bound:
        assert bound.proto == socket.IPPROTO_TCP


@pytest.mark.anyio
async def test_a_served_app_reports_its_url_and_answers(tmp_path) -> None:
    argv = [sys.executable, "-c", SERVER]
    async with (
        child("engine-0", argv, log=tmp_path / "e.log", error=EngineError, start_timeout=30) as running,
        aiohttp.ClientSession() as http,
        http.get(running.ready["url"]) as response,
    ):
        assert await response.text() == "hello"
