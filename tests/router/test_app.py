"""The router's own endpoints and settings."""

from __future__ import annotations

import json

import pytest

from miles_core.errors import ConfigError, RouterError
from miles_core.router.app import create_app
from miles_core.router.settings import RouterSettings

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


@pytest.mark.anyio
async def test_workers_are_added_listed_and_removed(rig):
    router = await rig.router(A)

    status, _, _ = await rig.fetch("POST", f"{router}/workers", json={"url": B + "/"})
    assert status == 200
    _, _, body = await rig.fetch("GET", f"{router}/workers")
    assert json.loads(body) == {
        "workers": [
            {"url": A, "in_flight": 0, "available": True},
            {"url": B, "in_flight": 0, "available": True},
        ]
    }
    status, _, _ = await rig.fetch("DELETE", f"{router}/workers", params={"url": A})
    assert status == 200
    _, _, body = await rig.fetch("GET", f"{router}/list_workers")
    assert json.loads(body) == {"urls": [B]}


@pytest.mark.anyio
async def test_the_short_verbs_do_the_same(rig):
    router = await rig.router(A)
    assert (await rig.fetch("POST", f"{router}/add_worker", params={"url": B}))[0] == 200
    assert (await rig.fetch("POST", f"{router}/remove_worker", params={"url": A}))[0] == 200
    assert json.loads((await rig.fetch("GET", f"{router}/list_workers"))[2]) == {"urls": [B]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/workers", b"", 400),
        ("POST", "/workers", b"[1]", 400),
        ("POST", "/workers", b'{"url": 3}', 400),
        ("POST", "/workers", b'{"url": "nowhere"}', 400),
        ("POST", "/workers", b"\xff", 400),
        ("DELETE", "/workers", b"", 400),
        ("DELETE", "/workers?url=http://unknown:1", b"", 404),
        ("POST", "/remove_worker?url=http://unknown:1", b"", 404),
    ],
)
@pytest.mark.anyio
async def test_a_wrong_worker_is_refused_with_a_remedy(rig, method, path, body, status):
    router = await rig.router(A)

    got, _, answer = await rig.fetch(method, f"{router}{path}", data=body)

    assert got == status
    assert json.loads(answer)["error"]["remedy"]
    assert json.loads((await rig.fetch("GET", f"{router}/list_workers"))[2]) == {"urls": [A]}


@pytest.mark.anyio
async def test_readiness_needs_a_worker_and_health_does_not(rig):
    router = await rig.router()
    assert (await rig.fetch("GET", f"{router}/health"))[0] == 200
    assert (await rig.fetch("GET", f"{router}/readiness"))[0] == 503
    await rig.fetch("POST", f"{router}/workers", json={"url": A})
    status, _, body = await rig.fetch("GET", f"{router}/readiness")
    assert (status, json.loads(body)) == (200, {"status": "ready", "workers": 1, "available": 1})


@pytest.mark.anyio
async def test_readiness_ends_when_every_worker_rests(rig, dead_url):
    router = await rig.router(dead_url, cooldown=30, max_retries=0)
    await rig.fetch("POST", f"{router}/generate", data=b"{}")
    assert (await rig.fetch("GET", f"{router}/readiness"))[0] == 503


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate"), ("GET", "/model_info"), ("POST", "/flush_cache")])
@pytest.mark.anyio
async def test_without_workers_the_answer_says_what_to_do(rig, method, path):
    router = await rig.router()

    status, headers, body = await rig.fetch(method, f"{router}{path}")

    assert (status, headers["retry-after"]) == (503, "1")
    error = json.loads(body)["error"]
    assert error["type"] == "no_worker"
    assert "POST /workers" in error["remedy"]


@pytest.mark.anyio
async def test_a_request_in_flight_survives_the_removal_of_its_worker(rig):
    router = ""

    async def remove_then_answer(scope, receive, send):
        assert (await rig.fetch("DELETE", f"{router}/workers", params={"url": worker.url}))[0] == 200
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    worker = await rig.worker(remove_then_answer)
    router = await rig.router(worker)

    status, _, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (status, body) == (200, b"done")
    assert await rig.in_flight(router) == []


@pytest.mark.anyio
async def test_a_web_socket_is_refused():
    sent = []

    async def send(message) -> None:
        sent.append(message["type"])

    await create_app([A])({"type": "websocket", "path": "/generate", "headers": []}, None, send)

    assert sent == ["websocket.close"]


def test_wrong_settings_stop_the_start():
    with pytest.raises(ConfigError, match=r"'random'(.|\n)*least_in_flight, round_robin"):
        create_app([], RouterSettings(policy="random"))
    with pytest.raises(RouterError, match="localhost"):
        create_app(["localhost:30000"])
