"""Every request has one id, from end to end."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from middleware_hub.request_id import RequestId
from miles_core.api import PluginContext, RouterMiddleware

pytestmark = pytest.mark.anyio


class Inner:
    """An app that streams two chunks and remembers the headers that it saw."""

    def __init__(self, headers=()):
        self.headers = list(headers)
        self.seen = []
        self.types = []

    async def __call__(self, scope, receive, send):
        self.types.append(scope["type"])
        if scope["type"] == "http":
            self.seen.append(scope["headers"])
            await send({"type": "http.response.start", "status": 200, "headers": self.headers})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            await send({"type": "http.response.body", "body": b"2"})


async def call(app, headers=(), kind="http"):
    sent = []

    async def send(message):
        sent.append(message)

    await app({"type": kind, "headers": list(headers)}, None, send)
    return sent


def make(inner, **options):
    return RequestId(inner, RequestId.Config(**options), PluginContext())


async def test_a_missing_id_is_made_and_is_the_same_on_both_sides():
    inner = Inner()
    app = make(inner)
    sent = [await call(app, [(b"accept", b"*/*")]) for _ in range(2)]

    up = [dict(headers)[b"x-request-id"] for headers in inner.seen]
    down = [dict(messages[0]["headers"])[b"x-request-id"] for messages in sent]
    assert up == down
    assert up[0] != up[1]
    assert all(dict(headers)[b"accept"] == b"*/*" for headers in inner.seen)


async def test_the_clients_id_is_kept():
    inner = Inner()
    sent = await call(make(inner), [(b"x-request-id", b"mine")])
    assert inner.seen == [[(b"x-request-id", b"mine")]]
    assert sent[0]["headers"] == [(b"x-request-id", b"mine")]


async def test_an_empty_id_counts_as_missing():
    inner = Inner()
    await call(make(inner), [(b"x-request-id", b"")])
    ((name, value),) = inner.seen[0]
    assert name == b"x-request-id"
    assert value


async def test_an_id_that_the_worker_set_is_replaced_not_doubled():
    sent = await call(make(Inner([(b"X-Request-Id", b"theirs")])), [(b"x-request-id", b"mine")])
    assert sent[0]["headers"] == [(b"x-request-id", b"mine")]


async def test_chunks_pass_one_by_one_and_other_scopes_untouched():
    inner = Inner()
    app = make(inner)
    sent = await call(app)
    assert [message.get("body") for message in sent] == [None, b"1", b"2"]
    assert await call(app, kind="lifespan") == []
    assert inner.types == ["http", "lifespan"]


async def test_the_header_has_the_name_of_the_config():
    sent = await call(make(Inner(), header="X-Trace"))
    assert [name for name, _ in sent[0]["headers"]] == [b"x-trace"]


@pytest.mark.parametrize("options", [{"heder": "x"}, {"header": ""}, {"header": "a b"}, {"header": "a\n"}])
def test_a_wrong_config_is_refused(options):
    with pytest.raises(ValidationError):
        RequestId.Config(**options)


def test_it_is_a_router_middleware():
    assert isinstance(make(Inner()), RouterMiddleware)
