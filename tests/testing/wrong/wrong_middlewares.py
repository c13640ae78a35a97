"""Router middlewares that break one rule each."""

from __future__ import annotations

import asyncio
import time

import anyio

from miles_core.testing import RouterMiddlewareSuite


class Right:
    """Passes everything on."""

    def __init__(self, app, config, context):
        self.app = app
        self.kept = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            await self.http(scope, receive, send)
        else:
            await self.other(scope, receive, send)

    async def http(self, scope, receive, send):
        await self.app(scope, receive, send)

    async def other(self, scope, receive, send):
        await self.app(scope, receive, send)


class NoLifespan(Right):
    """Answers lifespan itself."""

    async def other(self, scope, receive, send):
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)


class NoWebSocket(Right):
    """Closes web sockets."""

    async def other(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1011})


class Stripping(Right):
    """Drops headers that it does not know."""

    async def http(self, scope, receive, send):
        known = [pair for pair in scope["headers"] if not pair[0].startswith(b"x-")]
        await self.app({**scope, "headers": known}, receive, send)


class FirstChunk(Right):
    """Takes the first message for the whole body."""

    async def http(self, scope, receive, send):
        body = (await receive()).get("body", b"")
        replayed = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay():
            return next(replayed, None) or await receive()

        await self.app(scope, replay, send)


class Unique(Right):
    """Keeps one header of each name."""

    async def http(self, scope, receive, send):
        async def send_unique(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": list(dict(message["headers"]).items())}
            await send(message)

        await self.app(scope, receive, send_unique)


class Holding(Right):
    """Holds each message back until the next one comes."""

    async def http(self, scope, receive, send):
        held = []

        async def send_later(message):
            held.append(message)
            if len(held) > 1:
                await send(held.pop(0))

        await self.app(scope, receive, send_later)
        for message in held:
            await send(message)


class Keeping(Right):
    """Keeps a copy of all that passes."""

    async def http(self, scope, receive, send):
        async def send_and_keep(message):
            self.kept.append(message)
            await send(message)

        await self.app(scope, receive, send_and_keep)


class Deaf(Right):
    """Reads the body and never asks again."""

    async def http(self, scope, receive, send):
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())

        async def replay():
            if not messages:
                await anyio.sleep_forever()
            return messages.pop(0)

        await self.app(scope, replay, send)


class Hiding(Right):
    """Turns errors into empty answers."""

    async def http(self, scope, receive, send):
        try:
            await self.app(scope, receive, send)
        except RuntimeError:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})


class Mixing(Right):
    """Keeps the request's send on itself."""

    async def http(self, scope, receive, send):
        self.send = send

        async def send_on(message):
            await self.send(message)

        await self.app(scope, receive, send_on)


class Blocking(Right):
    """Sleeps."""

    async def http(self, scope, receive, send):
        if any(task.get_name().endswith(".beat") for task in asyncio.all_tasks()):
            time.sleep(0.6)  # noqa: ASYNC251 - that is what is wrong with it
        await self.app(scope, receive, send)


class TestRight(RouterMiddlewareSuite):
    plugin = Right
    breaks = ()


class TestNoLifespan(RouterMiddlewareSuite):
    plugin = NoLifespan
    breaks = ("passes_lifespan_on",)


class TestNoWebSocket(RouterMiddlewareSuite):
    plugin = NoWebSocket
    breaks = ("passes_other_scopes_on",)


class TestStripping(RouterMiddlewareSuite):
    plugin = Stripping
    breaks = ("the_request_arrives_whole",)


class TestFirstChunk(RouterMiddlewareSuite):
    plugin = FirstChunk
    breaks = ("a_body_in_chunks_arrives_whole",)


class TestUnique(RouterMiddlewareSuite):
    plugin = Unique
    breaks = ("the_answer_arrives_unharmed",)


class TestHolding(RouterMiddlewareSuite):
    plugin = Holding
    time_limit = 0.5
    breaks = ("a_stream_is_never_buffered",)


class TestKeeping(RouterMiddlewareSuite):
    plugin = Keeping
    breaks = ("memory_stays_flat",)


class TestDeaf(RouterMiddlewareSuite):
    plugin = Deaf
    time_limit = 0.5
    breaks = ("a_disconnect_reaches_the_app",)


class TestHiding(RouterMiddlewareSuite):
    plugin = Hiding
    breaks = ("an_error_is_not_hidden",)


class TestMixing(RouterMiddlewareSuite):
    plugin = Mixing
    breaks = ("concurrent_requests_do_not_mix",)


class TestBlocking(RouterMiddlewareSuite):
    plugin = Blocking
    breaks = ("does_not_block_the_event_loop",)
