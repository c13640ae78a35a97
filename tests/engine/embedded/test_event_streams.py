"""Streams of the embedded engine end with their clients."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from miles_core.engine.embedded.server import create_app
from miles_core.testing.asgi import http_scope

pytestmark = pytest.mark.anyio
BODY = json.dumps(
    {"input_ids": [3], "stream": True, "sampling_params": {"max_new_tokens": 120, "ignore_eos": True}}
).encode()


async def test_a_client_that_is_gone_before_the_first_byte_leaves_nothing_inside(make_engine: Any, moe: Any) -> None:
    """The server starts to answer into a connection that is closed, so the events are never asked for."""
    engine = make_engine(moe)
    app = create_app(engine)
    bodies = [{"type": "http.request", "body": BODY, "more_body": False}]
    inside: list[int] = []

    async def receive() -> Any:
        if not bodies:
            await anyio.sleep_forever()
        return bodies.pop()

    async def send(message: Any) -> None:
        inside.append(len(engine._thread.live()))
        raise BrokenPipeError(message["type"])

    engine._thread.set_gate("test", closed=True)
    engine.start()
    try:
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - a group, or the error itself
            await app(http_scope(headers=[(b"content-type", b"application/json")]), receive, send)
        assert "http.response.start" in repr(caught.getrepr())
        assert inside[0] == 1, "it was queued when the answer began"
        with anyio.fail_after(20):
            while engine.load()["num_requests"]:
                await anyio.lowlevel.checkpoint()
    finally:
        engine.close()
