"""The engines of a run: started together, watched, started again when they die, told apart by the weights they hold."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio

from miles_core.app.errors import task_group
from miles_core.app.outages import Outages
from miles_core.errors import MilesError, RouterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from miles_core.app.outages import Inspector, Lost
    from miles_core.app.processes import Child

    Launch: TypeAlias = Callable[[Callable[[str], None]], AbstractAsyncContextManager[Child]]

logger = logging.getLogger("miles.engines")

BACK_OFF_SECONDS = 1.0
LONGEST_BACK_OFF_SECONDS = 60.0
FORGIVEN_AFTER_SECONDS = 3600.0


class Gate(Protocol):
    """What lets requests through to engines: the router."""

    async def add(self, url: str) -> None:
        """Send requests to an engine, too."""

    async def remove(self, url: str) -> None:
        """Send an engine no more requests."""


@dataclass(eq=False)
class Server:
    """One engine through all its lives.

    ``url`` is ``None`` while it does not run, ``version`` the policy version that it holds, ``None`` for weights of
    unknown origin; ``has_run``: a start of it succeeded; ``restarts`` counts the tries after the first, ``tries`` those
    of them since it last served for long. ``serving_since`` is ``None`` while it gets no requests.
    """

    name: str
    launch: Launch
    url: str | None = None
    version: int | None = None
    serving_since: float | None = None
    has_run: bool = False
    restarts: int = 0
    tries: int = 0
    doing: str = "starting"
    since: float = field(default_factory=time.monotonic)
    starting: anyio.Lock = field(default_factory=anyio.Lock)

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


class Fleet:
    """All engines of a run.

    An engine gets requests while it runs and holds the committed policy version. One that dies is started again, at
    most ``max_restarts`` times, counted anew once it has served for an hour; it then holds the checkpoint of its
    command, which is version 0, and is behind until an :meth:`update`. ``version`` is the committed one at the start;
    ``outages`` knows every death. ``on_lost`` is called with the URL of an engine that is lost, and why.
    """

    def __init__(
        self,
        launches: Sequence[tuple[str, Launch]],
        inspector: Inspector,
        *,
        version: int,
        max_restarts: int,
        on_lost: Lost | None = None,
    ) -> None:
        self._servers = [Server(name, launch) for name, launch in launches]
        self._inspector = inspector
        self._max_restarts = max_restarts
        self._version = version
        self._gate: Gate | None = None
        self.outages = Outages(inspector, lambda: self.urls, on_lost)
        self._failure: MilesError | None = None
        self._changed = anyio.Event()
        self._membership = anyio.Lock()
        self._joining = anyio.Lock()

    @property
    def urls(self) -> tuple[str, ...]:
        """The engines that run now, those that are behind included."""
        return tuple(server.url for server in self._servers if server.url is not None)

    @property
    def named_urls(self) -> dict[str, str]:
        """The same by name, such as ``engine-0``."""
        return {server.name: server.url for server in self._servers if server.url is not None}

    @property
    def behind(self) -> tuple[str, ...]:
        """Engines that run and hold other weights than the committed ones."""
        return tuple(server.url for server in self._servers if server.url is not None and self._is_behind(server))

    @property
    def version(self) -> int:
        """The committed policy version."""
        return self._version

    @property
    def serves(self) -> bool:
        """Whether an engine takes requests."""
        return any(server.serving_since is not None for server in self._servers)

    @property
    def restarts(self) -> int:
        """How often engines were started again."""
        return sum(server.restarts for server in self._servers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The time in which engines run; all of them begin to start at once."""
        async with task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(self._keep, server)
            yield
            tasks.cancel_scope.cancel()

    async def open(self, gate: Gate, show: Callable[[str], None] = lambda _: None) -> None:
        """Wait until every engine runs, then let requests through; ``show`` gets a line about their starts.

        Raises:
            EngineError: if one cannot start, or a run cannot use it.
        """
        while self._failure is None and any(server.url is None for server in self._servers):
            show(f"starting engines: {'; '.join(server.start for server in self._servers)}")
            with anyio.move_on_after(1.0):
                await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        self._gate = gate
        for server in self._servers:
            await self._admit(server)

    async def watch(self) -> None:
        """Wait until an engine is lost for good, or the router cannot be told of one.

        Raises:
            MilesError: its death, or what the router said.
        """
        while self._failure is None:
            await self._changed.wait()
        raise self._failure

    async def changed(self) -> None:
        """Wait until an engine starts, serves or dies."""
        await self._changed.wait()

    async def available(self) -> None:
        """Wait until an engine takes requests."""
        while not self.serves:
            await self._changed.wait()

    async def fell_behind(self) -> None:
        """Wait until an engine runs that is :attr:`behind`."""
        while not self.behind:
            await self._changed.wait()

    @asynccontextmanager
    async def update(self, version: int, *, everyone: bool = True) -> AsyncIterator[tuple[str, ...]]:
        """Bring engines to ``version`` inside the block, which gets their URLs; at its end it is committed.

        All that run, or else those that are behind; one that comes up meanwhile joins after the block.
        """
        async with self._joining:
            taken = [(s, s.url) for s in self._servers if s.url is not None and (everyone or self._is_behind(s))]
            async with self.outages.blamed():
                yield tuple(url for _, url in taken)
            self._version = version
            for server, url in taken:
                if server.url == url:
                    server.version = version
                    await self._admit(server)

    @asynccontextmanager
    async def no_starts(self) -> AsyncIterator[None]:
        """A block in which no engine is being started: starts that go on are waited for, others wait.

        Not to be entered inside :meth:`update`, whose end the last moment of a start waits for.
        """
        async with AsyncExitStack() as stack:
            for server in self._servers:
                await stack.enter_async_context(server.starting)
            yield

    async def _keep(self, server: Server) -> None:
        while True:
            try:
                death = await self._life(server)
            except RouterError as error:  # no restart of an engine would help
                return self._fails(error)
            if not server.has_run or server.tries >= self._max_restarts:
                return self._fails(death)
            server.restarts += 1
            server.tries += 1
            tries = f"{server.tries} of {self._max_restarts}"
            logger.info("%s", death)
            what = death.message.splitlines()[0].removesuffix("; the end of its log:")
            logger.warning("%s is started again (%s): %s", server.name, tries, what)
            if self._gate is not None and not self.serves:
                logger.warning("no engine is left: generation waits")
            await anyio.sleep(server.back_off)

    def _fails(self, failure: MilesError) -> None:
        self._failure = self._failure or failure
        self._notify()

    async def _life(self, server: Server) -> MilesError:
        """From start to death; returns what ended it, and raises only what the router refused."""
        server.doing, server.since = "starting", time.monotonic()

        def on_progress(text: str) -> None:
            server.doing = text

        try:
            async with AsyncExitStack() as stack:
                async with server.starting:
                    running = await stack.enter_async_context(server.launch(on_progress))
                    await self._inspector.check(running.ready["url"])
                    async with self._joining:
                        self._starts(server, running)
                await self._admit(server)
                death = await running.ended()
                await self._dies(server, death)
                return death
        except RouterError:
            raise
        except MilesError as error:
            return error
        finally:
            server.url = server.serving_since = None

    def _starts(self, server: Server, running: Child) -> None:
        server.url = running.ready["url"]
        server.version = None if running.ready.get("foreign_weights") else 0
        server.has_run = True
        self._notify()

    async def _dies(self, server: Server, death: MilesError) -> None:
        url, since = server.url, server.serving_since
        server.url = server.serving_since = None
        if since is not None and time.monotonic() - since >= FORGIVEN_AFTER_SECONDS:
            server.tries = 0
        self.outages.died(death)
        self._notify()
        async with self._membership:
            if since is not None and url is not None and self._gate is not None:
                await self._gate.remove(url)
        if url is not None:
            await self.outages.lost(url, death.message.splitlines()[0].removesuffix("; the end of its log:"))

    async def _admit(self, server: Server) -> None:
        async with self._membership:
            url = server.url
            if self._gate is None or url is None or server.serving_since is not None or self._is_behind(server):
                return
            await self._gate.add(url)
            if server.url == url:
                server.serving_since = time.monotonic()
                self._notify()
                if server.restarts:
                    logger.warning("%s serves again", server.name)
            else:  # it died meanwhile
                await self._gate.remove(url)

    def _is_behind(self, server: Server) -> bool:
        return server.version != self._version

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
