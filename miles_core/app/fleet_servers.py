"""One engine server of a fleet, through all its lives."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from miles_core.app.processes import Child
    from miles_core.errors import MilesError

    Launch: TypeAlias = Callable[[Callable[[str], None]], AbstractAsyncContextManager[Child]]

BACK_OFF_SECONDS = 1.0
LONGEST_BACK_OFF_SECONDS = 60.0
_NUMBERS = re.compile(r"\d+")


@dataclass(eq=False)
class Server:
    """One engine through all its lives.

    ``url`` is ``None`` while it does not run, ``version`` the policy version that it holds, ``None`` for weights of
    unknown origin; ``has_run``: a start of it succeeded; ``gone``: it is not started again. ``restarts`` counts the
    tries after the first, ``tries`` those of them since it last served for long, ``strikes`` the updates that it missed
    in a row. ``serving_since`` is ``None`` while it gets no requests, ``heard`` when it last answered.
    """

    name: str
    launch: Launch
    url: str | None = None
    version: int | None = None
    serving_since: float | None = None
    has_run: bool = False
    gone: bool = False
    restarts: int = 0
    tries: int = 0
    doing: str = "starting"
    since: float = field(default_factory=time.monotonic)
    starting: anyio.Lock = field(default_factory=anyio.Lock)
    running: Child | None = None
    strikes: int = 0
    heard: float = 0.0
    _reasons: set[str] = field(default_factory=set)

    @property
    def start(self) -> str:
        """How far its start is, for a person."""
        if self.url is not None:
            return f"{self.name} ready"
        return f"{self.name} {self.doing}, {time.monotonic() - self.since:.0f} s"

    @property
    def back_off(self) -> float:
        """Seconds to wait before the next try."""
        doublings = min(self.tries - 1, 16)  # far beyond the longest, and no overflow
        return min(LONGEST_BACK_OFF_SECONDS, BACK_OFF_SECONDS * 2.0**doublings)

    def starts(self, running: Child) -> None:
        """Note that it runs, with the weights of its command."""
        self.running, self.strikes, self.has_run = running, 0, True
        self.url = running.ready["url"]
        self.version = None if running.ready.get("foreign_weights") else 0

    def holds(self, version: int) -> None:
        """Note that it took an update."""
        self.version, self.strikes = version, 0
        self._reasons.clear()

    def strike(self, why: MilesError) -> bool:
        """Note that it missed an update; whether that was for a new reason. What it holds is unknown from then on."""
        self.version = None
        self.strikes += 1
        reason = _NUMBERS.sub("#", why.message)
        is_new = reason not in self._reasons
        self._reasons.add(reason)
        return is_new

    def end(self) -> None:
        """Kill its process, stopped or not; who watches it starts another one."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                self.running.process.kill()
