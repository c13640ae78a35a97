"""The order of middlewares, and what happens when one of them fails."""

from __future__ import annotations

import json

import aiohttp
import pytest

from middleware_hub.request_id import RequestId
from miles_core.api import PluginContext

pytestmark = pytest.mark.anyio


class Layer:
    """Writes what happens to it into ``log``; raises ``fails`` at ``fails_at``: before, receive, send or started."""

    def __init__(self, name, log, fails_at=None):
        self.name, self.log, self.fails_at = name, log, fails_at

    def wrap(self, app):
        async def middleware(scope, receive, send):
            if scope["type"] != "http" or scope["path"] == "/workers":
                await app(scope, receive, send)
                return

            async def send_on(message):
                self.fail("send")
                if message["type"] == "http.response.start":
                    self.log.append(f"{self.name} {message['status']}")
                await send(message)
                self.fail("started")

            async def receive_on():
                self.fail("receive")
                return await receive()

            self.log.append(f"{self.name} in")
            try:
                self.fail("before")
                await app(scope, receive_on, send_on)
            finally:
                self.log.append(f"{self.name} out")

        return middleware

    def fail(self, where):
        if self.fails_at == where:
            raise ZeroDivisionError("by design")

    @property
    def pair(self):
        return (self.name, self.wrap)


async def ended(log) -> bool:
    return log[-1] == "a out"


async def test_the_first_middleware_is_the_outermost(rig, eventually):
    log = []
    router = await rig.router(await rig.worker(), middlewares=[Layer("a", log).pair, Layer("b", log).pair])

    await rig.fetch("GET", f"{router}/x")
    await eventually(lambda: ended(log))

    assert log == ["a in", "b in", "b 200", "a 200", "b out", "a out"]


@pytest.mark.parametrize(
    ("fails_at", "expected"),
    [
        ("before", ["a in", "b in", "b out", "a 500", "a out"]),
        ("receive", ["a in", "b in", "c in", "c out", "b out", "a 500", "a out"]),
        ("send", ["a in", "b in", "c in", "c 200", "c out", "b out", "a 500", "a out"]),
    ],
)
async def test_a_middleware_that_raises_is_named_and_the_ones_around_it_clean_up(rig, eventually, fails_at, expected):
    log = []
    layers = [Layer("a", log), Layer("b", log, fails_at), Layer("c", log)]
    router = await rig.router(await rig.worker(), middlewares=[layer.pair for layer in layers])

    status, _, body = await rig.fetch("GET", f"{router}/x")

    assert status == 500
    error = json.loads(body)["error"]
    assert error["type"] == "middleware_failed"
    assert error["message"] == "middleware b raised ZeroDivisionError: by design"
    await eventually(lambda: ended(log))
    assert log == expected
    assert await rig.in_flight(router) == [0]
    layers[1].fails_at = None
    assert (await rig.fetch("GET", f"{router}/x"))[0] == 200


async def test_a_middleware_that_asks_to_exit_is_named_as_well(rig):
    def exiting(app):
        async def middleware(scope, receive, send):
            if scope["type"] == "http" and scope["path"] == "/x":
                raise SystemExit(3)
            await app(scope, receive, send)

        return middleware

    router = await rig.router(await rig.worker(), middlewares=[("exiting", exiting)])
    status, _, body = await rig.fetch("GET", f"{router}/x")
    assert (status, json.loads(body)["error"]["message"]) == (500, "middleware exiting raised SystemExit: 3")
    assert (await rig.fetch("GET", f"{router}/y"))[0] == 200


async def test_a_middleware_that_raises_in_the_midst_of_an_answer_breaks_the_connection_only(rig):
    log = []
    layer = Layer("b", log, "started")
    router = await rig.router(await rig.worker((200, {}, b"x" * 100)), middlewares=[Layer("a", log).pair, layer.pair])

    with pytest.raises(aiohttp.ClientError):
        await rig.fetch("GET", f"{router}/x")

    layer.fails_at = None
    assert (await rig.fetch("GET", f"{router}/x"))[0] == 200
    assert await rig.in_flight(router) == [0]
    assert log[:6] == ["a in", "b in", "b 200", "a 200", "b out", "a out"]


async def test_a_middleware_that_keeps_lifespan_to_itself_is_told_so(rig):
    def keep_lifespan(app):
        async def middleware(scope, receive, send):
            if scope["type"] != "lifespan":
                await app(scope, receive, send)
                return
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})

        return middleware

    router = await rig.router(await rig.worker(), middlewares=[("keeper", keep_lifespan)])

    status, _, body = await rig.fetch("GET", f"{router}/x")

    assert status == 500
    assert "lifespan" in json.loads(body)["error"]["message"]


async def test_request_id_reaches_worker_and_client(rig):
    def wrap(app):
        return RequestId(app, RequestId.Config(), PluginContext())

    worker = await rig.worker()
    router = await rig.router(worker, middlewares=[("request_id", wrap)])

    _, headers, _ = await rig.fetch("POST", f"{router}/generate", data=b"{}")
    _, own, _ = await rig.fetch("POST", f"{router}/generate", data=b"{}", headers={"x-request-id": "mine"})

    assert headers["x-request-id"] == worker.seen[0].header("x-request-id")
    assert own["x-request-id"] == worker.seen[1].header("x-request-id") == "mine"
