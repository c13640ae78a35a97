"""The sessions that clients can reach: by an id that nobody can guess, for as long as somebody uses them."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from miles_core.session.served import Served

_ID_BYTES = 18


class RegistryFull(SessionError):  # noqa: N818 - reads as in `BudgetSpent` without the suffix
    """No more sessions can be opened at the moment."""


class OpenSession:
    """A session that clients can reach; ``answers`` is what a dialect remembers by the id of an answer."""

    def __init__(self, session_id: str, served: Served, *, kept: bool, now: float) -> None:
        self.id = session_id
        self.served = served
        self.kept = kept
        self.closed = False
        self.answers: dict[str, Any] = {}
        self.last_used = now
        self.scopes: set[anyio.CancelScope] = set()

    def close(self) -> None:
        """Cancel what is in flight."""
        self.closed = True
        for scope in self.scopes:
            scope.cancel()


class SessionRegistry:
    """Open sessions by id; of one event loop.

    A session that no request used for ``ttl`` seconds is closed, unless it is ``kept``; a request in flight uses it.
    ``clock`` counts seconds.
    """

    def __init__(self, *, ttl: float, max_sessions: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.ttl = ttl
        self.max_sessions = max_sessions
        self._clock = clock
        # the one that was used longest ago first, so that a sweep looks at what it closes and one more
        self._idle: OrderedDict[str, OpenSession] = OrderedDict()
        self._open: dict[str, OpenSession] = {}

    def __len__(self) -> int:
        self.sweep()
        return len(self._open)

    def add(self, served: Served, *, kept: bool = False) -> str:
        """The id of a session from now on, which is also its API key; a ``kept`` one ends only by :meth:`remove`.

        Raises:
            RegistryFull: if ``max_sessions`` are open.
        """
        self.check_room()
        session_id = secrets.token_urlsafe(_ID_BYTES)
        opened = OpenSession(session_id, served, kept=kept, now=self._clock())
        self._open[session_id] = opened
        self._touch(opened)
        return session_id

    def check_room(self) -> None:
        """Whether one more session can be added.

        Raises:
            RegistryFull: if ``max_sessions`` are open.
        """
        self.sweep()
        if len(self._open) >= self.max_sessions:
            raise RegistryFull(
                f"{len(self._open)} sessions are open, and no more than {self.max_sessions} may be",
                remedy="Close sessions that have ended (DELETE /sessions/ID), or raise session.max_sessions.",
            )

    def opened(self, session_id: str) -> OpenSession:
        """The session of an id, which is used by that.

        Raises:
            SessionError: if there is none, or no longer.
        """
        self.sweep()
        opened = self._open.get(session_id)
        if opened is None:
            raise SessionError(
                "no open session has this id: it was never opened, or has expired or was closed",
                remedy=f"Open one with POST /sessions; it stays open for {self.ttl:g} s after its last request.",
            )
        self._touch(opened)
        return opened

    @contextmanager
    def using(self, opened: OpenSession) -> Iterator[anyio.CancelScope]:
        """A request of the session: it does not expire meanwhile, and closing it cancels the scope."""
        with anyio.CancelScope() as scope:
            if opened.closed:
                scope.cancel()
            opened.scopes.add(scope)
            self._idle.pop(opened.id, None)
            try:
                yield scope
            finally:
                opened.scopes.discard(scope)
                self._touch(opened)

    def remove(self, session_id: str) -> None:
        """Close a session; its requests in flight are cancelled.

        Raises:
            SessionError: if there is none, or no longer.
        """
        opened = self.opened(session_id)
        del self._open[session_id]
        self._idle.pop(session_id, None)
        opened.close()

    def sweep(self) -> None:
        """Close the sessions that have expired."""
        oldest = self._clock() - self.ttl
        while self._idle:
            opened = next(iter(self._idle.values()))
            if opened.last_used > oldest:
                return
            del self._idle[opened.id], self._open[opened.id]
            opened.close()

    def _touch(self, opened: OpenSession) -> None:
        opened.last_used = self._clock()
        if not opened.kept and not opened.closed and not opened.scopes:
            self._idle[opened.id] = opened
            self._idle.move_to_end(opened.id)
