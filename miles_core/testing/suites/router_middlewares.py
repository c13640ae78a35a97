"""What every router middleware must keep."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from miles_core.testing.asgi import Answer, Echo, http_scope, request, respond
from miles_core.testing.suites.base import PluginSuite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CHUNK = 1 << 20
_CHUNKS = 200
_MEMORY = 24 << 20


class RouterMiddlewareSuite(PluginSuite):
    """Conformance of router middlewares, against a scripted app in process.

    ``headers`` go with every request, such as a key that the middleware asks for. ``body`` is the JSON that is posted
    to ``path``; each request gets a ``rid`` of its own. ``may_change_headers`` names answer headers that the middleware
    sets itself.
    """

    kind = "router_middlewares"
    headers: ClassVar[Mapping[str, str]] = {}
    path: ClassVar[str] = "/generate"
    body: ClassVar[Mapping[str, Any]] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
    may_change_headers: ClassVar[frozenset[str]] = frozenset()
    time_limit: ClassVar[float] = 5.0

    def scope(self, *more: tuple[bytes, bytes]) -> Scope:
        """One request's scope."""
        given = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        return http_scope(path=self.path, headers=[(b"content-type", b"application/json"), *given, *more])

    def payload(self, rid: str) -> bytes:
        """One request's body."""
        return json.dumps({**self.body, "rid": rid}).encode()

    async def ask(self, app: ASGIApp, rid: str = "one", scope: Scope | None = None) -> Answer:
        """Send one request; the suite fails if no answer comes in time."""
        with anyio.move_on_after(self.time_limit):
            return await request(app, scope or self.scope(), [self.payload(rid)])
        self.check(False, expected=f"an answer within {self.time_limit:g} s", got="none", remedy="Find what waits.")
        raise AssertionError

    async def test_passes_lifespan_on(self) -> None:
        """The app behind it starts and stops: ``lifespan`` messages reach it, and its answers come back."""
        seen: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["type"])
            for _ in range(2):
                moment = (await receive())["type"].removeprefix("lifespan.")
                await send({"type": f"lifespan.{moment}.complete"})

        answers: list[str] = []
        moments = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> Message:
            return {"type": next(moments)}

        async def send(message: Message) -> None:
            answers.append(message["type"])

        with anyio.move_on_after(self.time_limit):
            await self.make(app=app)({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        self.check(
            (seen, answers) == (["lifespan"], ["lifespan.startup.complete", "lifespan.shutdown.complete"]),
            expected="startup and shutdown of the inner app",
            got=f"scopes {seen}, answers {answers}",
            remedy='Begin with: if scope["type"] != "http": await self._app(scope, receive, send); return.',
        )

    async def test_passes_other_scopes_on(self) -> None:
        """A WebSocket, or whatever is not ``http``, reaches the app behind it untouched."""
        seen: list[Scope] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope)
            await send({"type": "websocket.close", "code": 1000})

        answers: list[Message] = []

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            answers.append(message)

        scope = {**self.scope(), "type": "websocket", "scheme": "ws", "subprotocols": []}
        with anyio.move_on_after(self.time_limit):
            await self.make(app=app)(scope, receive, send)
        self.check(
            [s["type"] for s in seen] == ["websocket"] and answers == [{"type": "websocket.close", "code": 1000}],
            expected="the inner app's own answer to a websocket scope",
            got=f"scopes {[s['type'] for s in seen]}, answers {answers}",
            remedy='Begin with: if scope["type"] != "http": await self._app(scope, receive, send); return.',
        )

    async def test_the_request_arrives_whole(self) -> None:
        """Method, path, query, body and the client's headers reach the app behind it."""
        echo = Echo()
        scope = {**self.scope((b"x-mine", b"1")), "query_string": b"a=1&b=%20"}
        await self.ask(self.make(app=echo), "whole", scope)
        self.check(len(echo.scopes) == 1, expected="one request behind it", got=len(echo.scopes), remedy="Pass it on.")
        came = echo.scopes[0]
        for key in ("method", "path", "query_string"):
            self.check(came[key] == scope[key], expected=f"{key} {scope[key]!r}", got=came[key], remedy="Keep it.")
        lost = [pair for pair in scope["headers"] if pair not in list(came["headers"])]
        self.check(not lost, expected="all of the client's headers", got=f"without {lost}", remedy="Only add some.")
        body, whole = echo.bodies[0], self.payload("whole")
        self.check(body == whole, expected=f"the body {whole!r}", got=body, remedy="Replay a body that you have read.")

    async def test_a_body_in_chunks_arrives_whole(self) -> None:
        """A request that comes in several ``http.request`` messages reaches the app behind it complete."""
        echo = Echo()
        whole = self.payload("chunks")
        with anyio.move_on_after(self.time_limit):
            await request(self.make(app=echo), self.scope(), [whole[:5], b"", whole[5:9], whole[9:]])
        self.check(
            echo.bodies == [whole],
            expected=f"the body {whole!r}",
            got=f"{echo.bodies}",
            remedy="Call receive() until more_body is false, or leave the body alone.",
        )

    async def test_the_answer_arrives_unharmed(self) -> None:
        """Status, headers and every byte of an answer come through, also of errors and of binary data."""
        raw = bytes(range(256))
        for status in (200, 204, 404, 500, 503):
            body = b"" if status == 204 else raw
            sent = [(b"x-engine", b"7"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]

            async def app(
                scope: Scope,
                receive: Receive,
                send: Send,
                status: int = status,
                sent: list[tuple[bytes, bytes]] = sent,
                body: bytes = body,
            ) -> None:
                await respond(send, status, sent, body)

            answer = await self.ask(self.make(app=app), f"status-{status}")
            self.check(answer.status == status, expected=f"status {status}", got=answer.status, remedy="Keep it.")
            kept = [pair for pair in sent if pair[0].decode() not in self.may_change_headers]
            lost = [pair for pair in kept if pair not in answer.headers]
            self.check(not lost, expected=f"the worker's headers {kept}", got=f"without {lost}", remedy="Keep them.")
            self.check(
                answer.body == body and answer.complete,
                expected=f"{len(body)} bytes, unchanged and complete",
                got=f"{len(answer.body)} bytes, complete: {answer.complete}",
                remedy="Pass body messages on as they are.",
            )

    async def test_a_stream_is_never_buffered(self) -> None:
        """A chunk reaches the client before the next one is made: agents read tokens as they come."""
        read = [anyio.Event() for _ in range(3)]
        answer = Answer()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number, event in enumerate(read):
                await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
                await event.wait()
            await send({"type": "http.response.body", "body": b""})

        async def receive() -> Message:
            if not sent_body.is_set():
                sent_body.set()
                return {"type": "http.request", "body": self.payload("stream")}
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            answer.add(message)
            for event in read[: len(answer.chunks)]:
                event.set()

        sent_body = anyio.Event()
        with anyio.move_on_after(self.time_limit):
            await self.make(app=app)(self.scope(), receive, send)
        self.check(
            answer.chunks == [b"0", b"1", b"2"] and answer.complete,
            expected="three chunks, each before the next was made",
            got=f"{answer.chunks}, complete: {answer.complete}",
            remedy="Call send() for each message at once; collect nothing.",
        )

    async def test_memory_stays_flat(self) -> None:
        """A stream of 200 MB passes in the memory of a few chunks."""
        size = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(_CHUNKS):
                await send({"type": "http.response.body", "body": bytes(_CHUNK), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        async def send(message: Message) -> None:
            nonlocal size
            size += len(message.get("body", b""))

        async def receive() -> Message:
            return {"type": "http.request", "body": self.payload("large")}

        made = self.make(app=app)
        tracemalloc.start()
        try:
            await made(self.scope(), receive, send)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.check(
            size == _CHUNK * _CHUNKS, expected=f"{_CHUNK * _CHUNKS} bytes", got=size, remedy="Pass every chunk on."
        )
        self.check(
            peak < _MEMORY,
            expected=f"less than {_MEMORY >> 20} MB in memory",
            got=f"{peak >> 20} MB",
            remedy="Keep no chunk after send(); count or hash it as it passes.",
        )

    async def test_a_disconnect_reaches_the_app(self) -> None:
        """When the client leaves, the app behind it learns so: it then aborts the generation."""
        messages: list[Message] = [{"type": "http.request", "body": self.payload("gone")}]
        learnt: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            while (message := await receive())["type"] != "http.disconnect":
                assert message["type"] == "http.request"
                await anyio.lowlevel.checkpoint()
            learnt.append("disconnect")

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            """Nobody listens."""

        with anyio.move_on_after(self.time_limit):
            await self.make(app=app)(self.scope(), receive, send)
        self.check(
            learnt == ["disconnect"],
            expected="http.disconnect from the inner app's receive()",
            got="none",
            remedy="A replaced receive() must go on to the server's own once the body is read.",
        )

    async def test_an_error_is_not_hidden(self) -> None:
        """An exception of the app behind it comes out, or becomes an answer of 500 or more; it is no success."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            raise RuntimeError("the worker is gone")

        made = self.make(app=app)
        try:
            answer = await self.ask(made, "error")
        except Exception as error:  # noqa: BLE001 - as it should
            self.check(
                "the worker is gone" in _texts(error), expected="the app's own error", got=error, remedy="Raise it."
            )
            return
        self.check(
            answer.status >= 500,
            expected="the exception, or a status of 500 or more",
            got=f"status {answer.status}",
            remedy="Catch nothing that you do not answer.",
        )

    async def test_concurrent_requests_do_not_mix(self) -> None:
        """Many requests at once each get their own answer."""
        echo = Echo()
        made = self.make(app=echo)
        answers: dict[str, bytes] = {}

        async def one(rid: str) -> None:
            answers[rid] = (await self.ask(made, rid)).body

        async with anyio.create_task_group() as tasks:
            for number in range(32):
                tasks.start_soon(one, f"rid-{number}")
        mixed = [rid for rid, body in answers.items() if body != self.payload(rid)]
        self.check(
            not mixed,
            expected="each request's own answer",
            got=f"another one for {', '.join(mixed[:3])}",
            remedy="Keep what belongs to a request in local variables, never on self.",
        )

    async def test_does_not_block_the_event_loop(self) -> None:
        """Nothing in it holds the event loop: every request of every session passes here."""
        made = self.make(app=Echo())
        await self.check_leaves_the_loop_free(
            lambda: self.ask(made, "loop"), remedy="Await what waits, and run what computes in a thread."
        )


def _texts(error: BaseException) -> str:
    """The messages of an error, of those in its group and of what caused it."""
    inner = [_texts(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    cause = [_texts(error.__cause__)] if error.__cause__ else []
    return " ".join([str(error), *inner, *cause])
