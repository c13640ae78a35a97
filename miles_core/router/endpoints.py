"""The router's own endpoints; their paths are never proxied."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.errors import RouterError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from miles_core.router.workers import WorkerRegistry


class Endpoints:
    """``/health``, ``/readiness`` and what adds, lists and removes workers (sglang-router's verbs)."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers

    def routes(self) -> list[Route]:
        """All routes, by exact path."""
        return [
            Route("/health", self._health, methods=["GET"]),
            Route("/readiness", self._readiness, methods=["GET"]),
            Route("/workers", self._list, methods=["GET"]),
            Route("/workers", self._add, methods=["POST"]),
            Route("/workers", self._remove, methods=["DELETE"]),
            Route("/list_workers", self._list_urls, methods=["GET"]),
            Route("/add_worker", self._add, methods=["POST"]),
            Route("/remove_worker", self._remove, methods=["POST"]),
        ]

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readiness(self, _: Request) -> Response:
        workers = self._workers.workers
        available = sum(self._workers.is_available(worker) for worker in workers)
        status = {"status": "ready" if available else "not_ready", "workers": len(workers), "available": available}
        return JSONResponse(status, status_code=200 if available else 503)

    async def _list(self, _: Request) -> Response:
        rows = [
            {"url": worker.url, "in_flight": worker.in_flight, "available": self._workers.is_available(worker)}
            for worker in self._workers.workers
        ]
        return JSONResponse({"workers": rows})

    async def _list_urls(self, _: Request) -> Response:
        return JSONResponse({"urls": [worker.url for worker in self._workers.workers]})

    async def _add(self, request: Request) -> Response:
        try:
            worker = self._workers.add(await _worker_url(request))
        except RouterError as error:
            return _refusal(400, error)
        return JSONResponse({"url": worker.url})

    async def _remove(self, request: Request) -> Response:
        try:
            url, drop = await _worker_url(request), await _drops(request)
        except RouterError as error:
            return _refusal(400, error)
        try:
            self._workers.remove(url, drop=drop)
        except RouterError as error:
            return _refusal(404, error)
        return JSONResponse({"url": url})


async def _worker_url(request: Request) -> str:
    url: object = request.query_params.get("url")
    if url is None:
        url = _member(await request.body(), "url", None)
    if not isinstance(url, str):
        raise RouterError(
            f"{request.method} {request.url.path} needs a worker's URL and came without one",
            remedy='Send JSON {"url": "http://host:port"}, or add ?url=http://host:port to the path.',
        )
    return url


def _member(raw: bytes, key: str, default: object) -> object:
    """A member of a JSON object; ``default`` where it has none, or the bytes are something else."""
    try:
        body = json.loads(raw)
    except ValueError:
        return default
    return body.get(key, default) if isinstance(body, dict) else default


async def _drops(request: Request) -> bool:
    """Whether requests in flight are to end at once: ``drop`` in the body or the query."""
    word = request.query_params.get("drop")
    if word is not None:
        drop: object = {"true": True, "false": False}.get(word)
    else:
        drop = _member(await request.body(), "drop", False)
    if not isinstance(drop, bool):
        raise RouterError("drop must be true or false", remedy='Send {"url": ..., "drop": true}, or leave it out.')
    return drop


def _refusal(status: int, error: RouterError) -> Response:
    body = {"error": {"type": "invalid_request", "message": error.message, "remedy": error.remedy}}
    return JSONResponse(body, status_code=status)
