"""The streaming proxy: one client request in, one worker's answer out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from miles_core.router.body import ClientDisconnected, RequestBody
from miles_core.router.disconnect import run_until
from miles_core.router.errors import error_answer, send_all
from miles_core.router.headers import request_headers
from miles_core.router.retry import OVERLOADED, RETRIED_STATUSES, may_retry, retry_after_seconds
from miles_core.router.upstream import Answer, UnreachableError, Upstream, UpstreamError, UpstreamRequest
from miles_core.router.workers import NoWorkerError

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from miles_core.router.settings import RouterSettings
    from miles_core.router.workers import Worker, WorkerRegistry


class Proxy:
    """An ASGI app for HTTP requests.

    A request that fails before its first byte goes to another worker if it ``may_retry``; so does one whose worker is
    dropped, which costs none of its tries. A client that leaves closes
    the connection to the worker, which aborts the generation. An answer that breaks off after its first byte raises
    ``UpstreamError``, so that the server closes the client's connection instead of ending the answer.
    """

    def __init__(self, workers: WorkerRegistry, upstream: Upstream, settings: RouterSettings) -> None:
        self._workers = workers
        self._upstream = upstream
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        retry = may_retry(scope["method"], scope["path"])
        try:
            body = await RequestBody.read(receive, self._settings.max_replay_bytes if retry else 0)
        except ClientDisconnected:
            return
        request = UpstreamRequest(scope["method"], _target(scope), request_headers(scope["headers"]), body)
        retries = self._settings.max_retries if retry and body.complete else 0
        await run_until(body.disconnected, partial(self._serve, request, retries, send))

    async def _serve(self, request: UpstreamRequest, retries: int, send: Send) -> None:
        tried: list[Worker] = []
        client = _Client(send)
        rest: list[Message] | None = None
        while rest is None:
            try:
                worker = await self._workers.acquire(tried)
            except NoWorkerError as error:
                rest = error_answer(503, "no_worker", error.message, error.remedy, [(b"retry-after", b"1")])
                break
            tried.append(worker)
            try:
                with worker.attempt() as scope:
                    rest = await self._attempt(worker, request, client.send, last=len(tried) > retries)
            finally:
                self._workers.release(worker)
            if scope.cancelled_caught:
                rest = _dropped(worker, client, again=retries > 0)
                tried.remove(worker)
        # Sent when the worker is free again: whoever has the whole answer sees a counter without it.
        await send_all(rest, send)

    async def _attempt(
        self, worker: Worker, request: UpstreamRequest, send: Send, *, last: bool
    ) -> list[Message] | None:
        """Ask one worker; return what remains to be sent, or ``None`` to ask another."""
        try:
            answer = await self._upstream.open(worker.url, request)
        except UpstreamError as error:
            if isinstance(error, UnreachableError):
                self._workers.rest(worker, self._settings.cooldown)
            return error_answer(502, "worker_failed", error.message, error.remedy) if last else None
        try:
            if answer.status in OVERLOADED:
                self._workers.rest(worker, self._rest_seconds(answer))
            if answer.status in RETRIED_STATUSES and not last:
                return None
            return await _relay(answer, send)
        finally:
            answer.close()

    def _rest_seconds(self, answer: Answer) -> float:
        asked = retry_after_seconds(answer.retry_after)
        return self._settings.cooldown if asked is None else min(asked, self._settings.max_retry_after)


class _Client:
    """Sends to the client, and knows whether its answer has begun."""

    __slots__ = ("_send", "begun")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


def _dropped(worker: Worker, client: _Client, *, again: bool) -> list[Message] | None:
    """What the client of a dropped worker gets; ``None`` to ask another worker.

    Raises:
        UpstreamError: if its answer has begun.
    """
    error = UpstreamError(
        f"worker {worker.url} left the router while it answered", remedy="Make the request again; others serve it."
    )
    if client.begun:
        raise error
    return None if again else error_answer(502, "worker_failed", error.message, error.remedy)


async def _relay(answer: Answer, send: Send) -> list[Message]:
    """Stream an answer, and return its last messages unsent."""
    head: Message = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
    if answer.complete:
        return [head, {"type": "http.response.body", "body": answer.start}]
    await send(head)
    await send({"type": "http.response.body", "body": answer.start, "more_body": True})
    async for chunk in answer.chunks():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    return [{"type": "http.response.body", "body": b""}]


def _target(scope: Scope) -> str:
    """Path and query string as the client wrote them, unless a middleware changed the path."""
    path: str = scope["path"]
    raw: str = scope.get("raw_path", b"").decode("latin-1")
    if raw != path and unquote(raw) != path:
        raw = quote(path)
    query: bytes = scope["query_string"]
    return f"{raw}?{query.decode('latin-1')}" if query else raw
