"""The front before two ranks: real receivers behind real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.app.sglang_receiver import ranks
from miles_core.app.sglang_receiver.folder import make_folder, socket_of
from miles_core.app.sglang_receiver.front import Front
from miles_core.app.sglang_receiver.health import ServiceHealth
from miles_core.app.sglang_receiver.rank import listen, run
from miles_core.app.sglang_receiver.table import table_of, tensors_of
from miles_core.app.sglang_receiver.transports import make_transport, usable_transports
from miles_core.errors import EngineError, WeightSyncError
from miles_core.types import Shard
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.routes import routes

pytestmark = pytest.mark.anyio


class Host:
    """Serves nothing, so nothing keeps writers out."""

    reason: str | None = None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        yield

    def set_out_of_service(self, reason: str | None) -> None:
        self.reason = reason

    def finalise(self) -> None: ...

    def commit_version(self, version: int) -> None: ...


class Manager:
    """What the front asks of SGLang's own."""

    is_pause = True
    asked = 0

    async def get_internal_state(self) -> list[object]:
        self.asked += 1
        return []


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILES_WEIGHTS_FOLDER", "the one before, which is put back")
    monkeypatch.delenv("MILES_WEIGHTS_FOLDER")
    make_folder()
    made = socket_of(0).parent
    assert made.stat().st_mode & 0o777 == 0o700
    return made


@pytest.fixture
def serve_rank(folder: Path) -> Callable[..., Host]:
    """``serve_rank(0, version=3)``: a receiver of a small model, which ends with this process."""

    def serve(rank: int, *, version: int = 0, status: int = 200) -> Host:
        host = Host()
        tensors = tensors_of(torch.nn.Linear(3, 2))
        receiver = WeightReceiver(table_of(tensors, Shard(), ()), tensors, make_transport, host, version=version)

        async def told(_: Any) -> JSONResponse:
            update = receiver._update
            return JSONResponse({"open": update and update.version, "reason": host.reason}, status)

        app = Starlette(routes=[*routes(receiver, usable_transports), Route("/status", told)])
        threading.Thread(target=run, args=(app, listen(socket_of(rank))), daemon=True).start()
        return host

    return serve


def app_of(front: Front) -> Any:
    made = [Route(path, one, methods=[method]) for path, (method, one) in front.endpoints().items()]
    app = Starlette(routes=[*made, Route("/health", lambda _: JSONResponse({}))])
    app.add_middleware(ServiceHealth, front=front)
    return app


class Asked:
    """A front, asked in process."""

    def __init__(self, front: Front) -> None:
        self._app = app_of(front)

    async def __call__(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        path, _, query = target.partition("?")
        sent: list[Any] = []
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": [],
            "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("front", 80), "client": ("me", 1),
        }  # fmt: skip

        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        raw = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(raw)


def message_of(reply: tuple[int, Any]) -> str:
    return str(reply[1]["error"]["message"])


async def test_the_layouts_of_all_ranks_are_one(serve_rank: Any) -> None:
    serve_rank(0)
    serve_rank(1)
    status, layout = await Asked(Front(2, Manager()))("GET", "/weights/layout")
    assert status == 200
    assert [len(table["parameters"]) for table in layout["ranks"]] == [2, 2]
    assert (layout["version"], layout["torn"], layout["transports"]["memory"]) == (0, False, None)


async def test_ranks_of_different_versions_are_torn(serve_rank: Any) -> None:
    serve_rank(0, version=3)
    serve_rank(1, version=4)
    _, layout = await Asked(Front(2, Manager()))("GET", "/weights/layout")
    assert (layout["version"], layout["torn"]) == (3, True)


async def test_a_call_reaches_its_rank_and_no_other(serve_rank: Any) -> None:
    serve_rank(0)
    serve_rank(1)
    manager = Manager()
    ask = Asked(Front(2, manager))
    assert (await ask("POST", "/weights/begin?rank=1", {"version": 5, "transport": "memory"}))[0] == 200
    assert manager.asked == 1
    assert (await ask("POST", "/weights/verify?rank=1", {"version": 5, "checksums": {}}))[0] == 200
    reply = await ask("POST", "/weights/verify?rank=0", {"version": 5, "checksums": {}})
    assert (reply[0], "none is open" in message_of(reply)) == (409, True)


@pytest.mark.parametrize("rank", ["2", "-1", "x", "1.0"])
async def test_a_rank_that_is_not_there_is_a_bad_request(serve_rank: Any, rank: str) -> None:
    reply = await Asked(Front(2, Manager()))("POST", f"/weights/abort?rank={rank}", {})
    assert reply[0] == 400
    assert "0 to 1" in message_of(reply)


async def test_an_engine_that_generates_takes_no_update(serve_rank: Any) -> None:
    serve_rank(0)
    manager = Manager()
    manager.is_pause = False
    reply = await Asked(Front(1, manager))("POST", "/weights/begin", {"version": 5, "transport": "memory"})
    assert (reply[0], "paused" in message_of(reply)) == (409, True)


async def test_generation_and_memory_wait_for_the_end_of_an_open_update(serve_rank: Any) -> None:
    serve_rank(0)
    front, done = Front(1, Manager()), []
    ask = Asked(front)

    async def step() -> None:
        done.append(1)

    await ask("POST", "/weights/begin", {"version": 5, "transport": "memory"})
    for call in (front.resume, front.release):
        with pytest.raises(WeightSyncError, match="open update to version 5"):
            await call(step)
    await ask("POST", "/weights/abort", {})
    for call in (front.resume, front.release):
        await call(step)
    assert done == [1, 1]


async def test_out_of_service_is_said_by_health_and_keeps_generation_from_resuming(serve_rank: Any) -> None:
    host = serve_rank(0)
    front = Front(1, Manager())
    ask = Asked(front)
    assert (await ask("GET", "/health"))[0] == 200
    host.reason = "weights are torn: publish a whole update"
    reply = await ask("GET", "/health")
    assert (reply[0], "weights are torn" in message_of(reply)) == (503, True)
    with pytest.raises(WeightSyncError, match="weights are torn"):
        await front.resume(anyio.lowlevel.checkpoint)


async def test_a_rank_that_is_gone_is_an_error(folder: Path) -> None:
    reply = await Asked(Front(1, Manager()))("GET", "/weights/layout")
    assert (reply[0], "rank 0" in message_of(reply)) == (503, True)


async def test_a_rank_that_listens_and_says_nothing_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SILENCE_SECONDS", 0.2)
    with listen(socket_of(0)), pytest.raises(EngineError, match=r"rank 0 .* has not answered for 0.2 s"):
        await ranks.ask(0, "POST", "/weights/abort", b"{}")
