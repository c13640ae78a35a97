"""The watcher of a server that runs already: busy is not dead, gone is an error, and it never ends the server."""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from miles_core.app.processes import child
from miles_core.engine.sglang.attach import watch
from miles_core.engine.sglang.health import is_there, model_info
from miles_core.engine.sglang.ready import Report
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Handler(BaseHTTPRequestHandler):
    """Answers as SGLang does; one that is ``unwell`` fails its health check and goes on serving."""

    unwell = False

    def do_GET(self) -> None:
        self.send_response(503 if self.unwell else 200)
        self.end_headers()
        self.wfile.write(b'{"model_path": "m"}')

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.unwell = False
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


class Heard(Report):
    """Knows when the watcher said that the server serves."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def ready(self, url: str, *, foreign_weights: bool = False) -> None:
        super().ready(url, foreign_weights=foreign_weights)
        self.heard.set()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


async def test_an_attached_server_is_reported_with_foreign_weights_and_outlives_its_watcher(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    url = url_of(server)
    argv = [sys.executable, "-m", "miles_core.engine.sglang.attach", url]
    async with child("engine-0", argv, log=tmp_path / "log", error=EngineError, start_timeout=30) as watcher:
        assert watcher.ready == {"url": url, "foreign_weights": True}
    assert is_there(url, 10)


def test_a_server_that_is_gone_ends_the_watch(server: ThreadingHTTPServer) -> None:
    url = url_of(server)
    report = Heard()
    errors: list[EngineError] = []

    def watching() -> None:
        try:
            watch(url, report, every=0.01, misses=3)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=watching)
    thread.start()
    assert report.heard.wait(10)
    server.shutdown()
    server.server_close()
    thread.join(30)
    assert not thread.is_alive()
    assert f"{url} is gone: 3 connections in a row failed" in errors[0].message


def test_a_server_that_is_busy_or_unwell_is_there(server: ThreadingHTTPServer) -> None:
    Handler.unwell = True
    assert is_there(url_of(server), 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert is_there(url, 0.2)
    assert not is_there(url, 0.2)


def test_what_is_no_sglang_is_refused(server: ThreadingHTTPServer) -> None:
    Handler.unwell = True
    with pytest.raises(EngineError, match="/model_info failed"):
        model_info(url_of(server))
