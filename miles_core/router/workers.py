"""The workers that the router knows, and how busy each is."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from miles_core.errors import RouterError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from miles_core.router.policy import Policy


class NoWorkerError(RouterError):
    """The router has no worker to send a request to."""


class Worker:
    """One engine server: its URL, requests in flight, and the time until which it is left alone.

    ``attempts`` are the scopes of what it is being asked; it was ``dropped`` if they were cancelled.
    """

    __slots__ = ("attempts", "dropped", "in_flight", "last_pick", "rests_until", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.in_flight = 0
        self.last_pick = 0
        self.rests_until = 0.0
        self.attempts: set[anyio.CancelScope] = set()
        self.dropped = False

    @contextmanager
    def attempt(self) -> Iterator[anyio.CancelScope]:
        """One exchange with the worker, which ends without a result when the worker is dropped."""
        with anyio.CancelScope() as scope:
            self.attempts.add(scope)
            if self.dropped:
                scope.cancel()
            try:
                yield scope
            finally:
                self.attempts.discard(scope)

    def drop(self) -> None:
        """End all that is in flight."""
        self.dropped = True
        for scope in self.attempts:
            scope.cancel()


class WorkerRegistry:
    """Adds, removes and picks workers. ``clock`` counts seconds.

    Raises:
        RouterError: if a URL is not the root of an HTTP server.
    """

    def __init__(self, urls: Iterable[str], policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._picks = itertools.count(1)
        self._changed = anyio.Event()
        self._workers: dict[str, Worker] = {}
        for url in urls:
            self.add(url)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, in the order in which they were added."""
        return tuple(self._workers.values())

    def add(self, url: str) -> Worker:
        """Add a worker; adding a known one changes nothing.

        Raises:
            RouterError: if the URL is not the root of an HTTP server.
        """
        worker = self._workers.setdefault(root_url(url), Worker(root_url(url)))
        self._changed.set()
        self._changed = anyio.Event()
        return worker

    def remove(self, url: str, *, drop: bool = False) -> None:
        """Send a worker no new requests; those in flight end by themselves, or at once with ``drop``.

        Raises:
            RouterError: if no such worker is known.
        """
        worker = self._workers.pop(root_url(url), None)
        if worker is None:
            known = ", ".join(self._workers) or "none"
            raise RouterError(f"no worker {url!r} is registered; known: {known}", remedy="Name a registered worker.")
        if drop:
            worker.drop()

    def is_available(self, worker: Worker) -> bool:
        """Whether requests go to this worker now."""
        return worker.rests_until <= self._clock()

    def rest(self, worker: Worker, seconds: float) -> None:
        """Send a worker no new requests for that long."""
        worker.rests_until = max(worker.rests_until, self._clock() + seconds)

    async def acquire(self, tried: Collection[Worker] = ()) -> Worker:
        """Pick a worker, rather one not ``tried`` yet, and count a request on it; the caller must ``release`` it.

        Waits while all workers rest.

        Raises:
            NoWorkerError: if no worker is registered.
        """
        while self._workers:
            now = self._clock()
            available = [worker for worker in self._workers.values() if worker.rests_until <= now]
            if available:
                fresh = [worker for worker in available if worker not in tried] if tried else available
                worker = self._policy(fresh or available)
                worker.in_flight += 1
                worker.last_pick = next(self._picks)
                return worker
            with anyio.move_on_after(min(worker.rests_until for worker in self._workers.values()) - now):
                await self._changed.wait()
        raise NoWorkerError(
            "the router has no worker",
            remedy='Add one: POST /workers with {"url": "http://host:port"}, then try again.',
        )

    def release(self, worker: Worker) -> None:
        """Take back what ``acquire`` counted."""
        worker.in_flight -= 1


def root_url(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        RouterError: if it is not the root of an HTTP server.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if (
        not valid
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not (url.isascii() and url.isprintable())
        or " " in url
    ):
        raise RouterError(
            f"a worker's URL must be the root of an HTTP server, got {url!r}",
            remedy="Give it as http://host:port, without credentials and query.",
        )
    return url.rstrip("/")
