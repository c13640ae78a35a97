"""An engine that answers by script: a real HTTP server on loopback that speaks SGLang's ``/generate``."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from miles_core.testing.engine_reply import ScriptedReply, event_body, reply_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import RoutingSpec

    Script = ScriptedReply | str | Callable[[Mapping[str, Any]], ScriptedReply | str]

_HOLD_SECONDS = 60.0


@dataclass
class Waiting:
    """A request that is held: ``aborted`` once ``/abort_request`` named it."""

    rid: str
    done: threading.Event = field(default_factory=threading.Event)
    aborted: bool = False


class ScriptedEngine:
    """Gives ``replies`` one after the other; a request too many is answered 500.

    A reply is a :class:`ScriptedReply`, a text, which needs a ``tokenizer``, or a function of the request's body that
    returns one of these. Streams show one token after the other. ``routing`` is the routing shape of the model that it
    plays: rows of experts are made up where a reply brings none. ``requests`` holds the bodies that came, in order; of
    a batch each part is one.

    Use it as a context manager; ``url`` is where it listens. It serves each connection in a thread of its own, so that
    it works with any event loop, or none.
    """

    def __init__(
        self,
        *replies: Script,
        tokenizer: ChatTokenizer | None = None,
        routing: RoutingSpec | None = None,
        version: int = 0,
    ) -> None:
        self.replies: list[Script] = list(replies)
        self.requests: list[dict[str, Any]] = []
        self.tokenizer = tokenizer
        self.routing = routing
        self.version = version
        self._waiting: dict[str, Waiting] = {}
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, *replies: Script) -> None:
        """Append to the script."""
        with self._lock:
            self.replies += replies

    def wait_for_requests(self, count: int, timeout: float = 10.0) -> None:
        """Return once ``count`` requests came in all; call it from a thread, not from the event loop.

        Raises:
            TimeoutError: if they do not come.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"{count} requests were expected within {timeout:g} s; {len(self.requests)} came")

    def release(self) -> None:
        """Let every held reply go on."""
        self._end(lambda waiting: True, aborted=False)

    def abort(self, rid: str | None = None) -> None:
        """End held replies as aborted: those whose ``rid`` starts with this one, as SGLang does, or all."""
        self._end(lambda waiting: rid is None or waiting.rid.startswith(rid), aborted=True)

    def generate(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and JSON of one ``/generate`` request, single or batch."""
        ids = body.get("input_ids")
        if not ids or not isinstance(ids[0], list):
            return self._one(body)
        parts = [
            {**body, **{key: body[key][n] for key in ("rid", "input_ids", "sampling_params") if key in body}}
            for n in range(len(ids))
        ]
        answers = [self._one(part) for part in parts]
        wrong = [answer for answer in answers if answer[0] != 200]
        return wrong[0] if wrong else (200, [answer[1] for answer in answers])

    def stream(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status, and the events of a streamed request, which is no batch, or the JSON of its error."""
        reply, waiting = self._arrived_with(body)
        if reply.status != 200:
            self._leave(waiting)
            return reply.status, {"error": {"message": reply.message}}
        return 200, self._events(reply, body, waiting)

    def _one(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        reply, waiting = self._arrived_with(body)
        try:
            if reply.hold:
                waiting.done.wait(_HOLD_SECONDS)
            elif reply.delay:
                waiting.done.wait(reply.delay)
            if reply.status != 200 or reply.fails_after is not None:
                return reply.status if reply.status != 200 else 500, {"error": {"message": reply.message}}
            return 200, self._body(reply, body, aborted=waiting.aborted)
        finally:
            self._leave(waiting)

    def _events(self, reply: ScriptedReply, body: Mapping[str, Any], waiting: Waiting) -> Iterator[dict[str, Any]]:
        """What there is so far, token by token, as SGLang sends it."""
        try:
            if reply.delay and not reply.hold:
                waiting.done.wait(reply.delay)
            whole = self._body(reply, body, aborted=waiting.aborted)
            count = len(whole["output_ids"])
            last = max(count - 1, 0) if reply.fails_after is None else min(reply.fails_after, count)
            for shown in range(last + 1):
                if shown:
                    yield event_body(whole, shown)
                if reply.hold and shown == count // 2:
                    waiting.done.wait(_HOLD_SECONDS)
                if waiting.aborted:
                    yield self._body(reply, body, aborted=True)
                    return
            yield whole if reply.fails_after is None else {"error": {"message": reply.message, "code": 500}}
        finally:
            self._leave(waiting)

    def _body(self, reply: ScriptedReply, body: Mapping[str, Any], *, aborted: bool) -> dict[str, Any]:
        decode = None if self.tokenizer is None else self.tokenizer.decode
        return reply_body(reply, body, self.routing, version=self.version, aborted=aborted, decode=decode)

    def _arrived_with(self, body: Mapping[str, Any]) -> tuple[ScriptedReply, Waiting]:
        """The reply to a request that has just come; the caller lets it leave."""
        waiting = Waiting(str(body.get("rid", "")))
        with self._arrived:
            self.requests.append(dict(body))
            number = len(self.requests)
            script = self.replies.pop(0) if self.replies else None
            self._waiting[waiting.rid] = waiting
            self._arrived.notify_all()
        try:
            return self._scripted(script, number, body), waiting
        except BaseException:
            self._leave(waiting)
            raise

    def _leave(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting.pop(waiting.rid, None)

    def _scripted(self, script: Script | None, number: int, body: Mapping[str, Any]) -> ScriptedReply:
        if script is None:
            return ScriptedReply(status=500, message=f"request {number} came, but the script has no reply left")
        reply = script(body) if callable(script) else script
        return self._spoken(reply) if isinstance(reply, str) else reply

    def _spoken(self, text: str) -> ScriptedReply:
        if self.tokenizer is None:
            raise ValueError("a scripted text needs ScriptedEngine(tokenizer=...); or script ScriptedReply(tokens)")
        return ScriptedReply((*self.tokenizer.encode(text), self.tokenizer.stop_token_ids[0]))

    def _end(self, matches: Callable[[Waiting], bool], *, aborted: bool) -> None:
        with self._lock:
            for waiting in self._waiting.values():
                if matches(waiting):
                    waiting.aborted = waiting.aborted or aborted
                    waiting.done.set()

    def __enter__(self) -> ScriptedEngine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    engine: ScriptedEngine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path in ("/health", "/health_generate"):
            self._send(200, None)
        elif self.path in ("/model_info", "/get_model_info"):
            self._send(200, {"model_path": "scripted", "weight_version": str(self.engine.version)})
        elif self.path in ("/server_info", "/get_server_info"):
            self._send(200, {"enable_return_routed_experts": self.engine.routing is not None})
        else:
            self._send(404, {"error": {"message": f"no route {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if self.path == "/generate" and body.get("stream"):
            self._send_events(*self._guarded(self.engine.stream, body))
        elif self.path == "/generate":
            self._send(*self._guarded(self.engine.generate, body))
        elif self.path == "/abort_request":
            self.engine.abort(None if body.get("abort_all") else str(body.get("rid", "\0")))
            self._send(200, None)
        elif self.path == "/update_weight_version":
            self.engine.version = int(body["new_version"])
            self._send(200, {"success": True})
        elif self.path in ("/pause_generation", "/continue_generation", "/flush_cache"):
            self._send(200, {"status": "ok"})
        else:
            self._send(404, {"error": {"message": f"no route {self.path}"}})

    def _guarded(
        self, answer: Callable[[Mapping[str, Any]], tuple[int, Any]], body: Mapping[str, Any]
    ) -> tuple[int, Any]:
        try:
            return answer(body)
        except Exception as error:  # noqa: BLE001 - a wrong script must not leave the client waiting
            return 500, {"error": {"message": f"the script failed: {type(error).__name__}: {error}"}}

    def _send(self, status: int, answer: Any) -> None:
        payload = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _send_events(self, status: int, events: Any) -> None:
        if status != 200:
            self._send(status, events)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with closing(events):
            for event in events:
                self._send_chunk(f"data: {json.dumps(event)}\n\n".encode())
        self._send_chunk(b"data: [DONE]\n\n")
        self._send_chunk(b"")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Say nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            """The client left."""


def _handler(engine: ScriptedEngine) -> type[BaseHTTPRequestHandler]:
    """The class that answers for one engine; the server makes an object for each connection."""
    return type("Handler", (_Handler,), {"engine": engine})
