"""The middleware against the rules of its kind, and its refusals."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from acme_gateway.rate_limit import RateLimit

from miles_core.api import PluginContext
from miles_core.testing import RouterMiddlewareSuite

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


class TestRateLimit(RouterMiddlewareSuite):
    plugin = "acme-gateway/rate_limit"


async def accepts(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def limited(**options: Any) -> RateLimit:
    # A token every 1000 s: no test is slow enough to see one come back.
    return RateLimit(accepts, RateLimit.Config(rate=0.001, **{"burst": 1, **options}), PluginContext())


async def ask(app: RateLimit, client: str = "a", path: str = "/generate", method: str = "POST") -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"x-client-id", client.encode())] if client else []
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("10.0.0.1", 1)}
    await app(scope, receive, send)
    return sent


async def statuses(app: RateLimit, *clients: str, **request: str) -> list[int]:
    return [(await ask(app, client, **request))[0]["status"] for client in clients]


@pytest.mark.anyio
async def test_a_client_beyond_its_burst_is_refused_and_told_when_to_come_back() -> None:
    app = limited()
    await ask(app)
    start, body = await ask(app)
    assert start["status"] == 429
    assert int(dict(start["headers"])[b"retry-after"]) in range(990, 1001)
    assert json.loads(body["body"])["error"]["type"] == "rate_limit"


@pytest.mark.anyio
async def test_clients_have_limits_of_their_own_and_the_address_stands_for_the_unnamed() -> None:
    assert await statuses(limited(), "a", "b", "a", "", "", "10.0.0.1") == [200, 200, 429, 200, 429, 429]


@pytest.mark.anyio
async def test_control_requests_and_health_checks_always_pass() -> None:
    app = limited()
    assert await statuses(app, "a", "a", path="/weights/commit") == [200, 200]
    assert await statuses(app, "a", "a", method="GET", path="/v1/models") == [200, 200]


@pytest.mark.anyio
async def test_only_the_most_recent_clients_are_remembered() -> None:
    assert await statuses(limited(clients=2), "a", "b", "a", "c", "b", "a") == [200, 200, 429, 200, 200, 200]


@pytest.mark.anyio
async def test_a_flood_of_refusals_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "miles"):
        assert await statuses(limited(), "a", "a", "a", "a") == [200, 429, 429, 429]
    assert [record.getMessage() for record in caplog.records] == ["client a sends more than 0.001 requests per second"]
