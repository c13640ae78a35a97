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
from miles_core.engine.sglang.health import is_there, model_info, why_unreachable
from miles_core.engine.sglang.ready import Report
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio


class Handler(BaseHTTPRequestHandler):
    """Answers as SGLang does; one that is ``unwell`` fails its health check and goes on serving."""

    unwell = False
    torn = False
    asked = threading.Semaphore(0)

    def do_GET(self) -> None:
        self.asked.release()
        fails = self.unwell or (self.torn and self.path == "/health")
        self.send_response(503 if fails else 200)
        self.end_headers()
        self.wfile.write(b'{"torn": true}' if self.torn and "layout" in self.path else b'{"model_path": "m"}')

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.unwell, Handler.torn, Handler.asked = False, False, threading.Semaphore(0)
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


async def test_a_server_whose_weights_an_update_left_torn_is_reported_for_the_next_puts_them_right(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    Handler.torn = True
    argv = [sys.executable, "-m", "miles_core.engine.sglang.attach", url_of(server)]
    async with child("engine-0", argv, log=tmp_path / "log", error=EngineError, start_timeout=30) as watcher:
        assert watcher.ready["foreign_weights"]


def test_a_server_that_is_gone_ends_the_watch(server: ThreadingHTTPServer) -> None:
    url = url_of(server)
    report = Heard()
    errors: list[EngineError] = []

    def watching() -> None:
        try:
            watch(url, report, every=0.01, misses=3, refused_seconds=30)
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


def test_where_nothing_listens_waiting_ends_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"no server listens at {url}, for 0.05 s: .*refused") as caught:
        watch(url, Report(), every=0.01, misses=3, refused_seconds=0.05)
    assert "engine.urls" in str(caught.value.remedy)


def test_a_server_that_loads_is_waited_for_longer_than_a_refusal(server: ThreadingHTTPServer) -> None:
    Handler.unwell = True
    report = Heard()
    errors: list[EngineError] = []

    def watching() -> None:
        try:
            watch(url_of(server), report, every=0.001, misses=1, refused_seconds=0)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=watching)
    thread.start()
    for _ in range(20):
        assert Handler.asked.acquire(timeout=10)
    Handler.unwell = False
    assert report.heard.wait(10)
    server.shutdown()
    server.server_close()
    thread.join(30)
    assert "is gone" in errors[0].message


def test_only_a_connection_that_cannot_be_made_has_a_reason(server: ThreadingHTTPServer) -> None:
    assert why_unreachable(url_of(server), 10) is None
    Handler.unwell = True
    assert why_unreachable(url_of(server), 10) is None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert why_unreachable(url, 0.2) is None
    assert "refused" in (why_unreachable(url, 10) or "")
    assert why_unreachable("http://no-such-host.invalid:1", 10)


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
