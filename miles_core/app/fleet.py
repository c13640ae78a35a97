"""The engines of a run: started together, watched, started again when they die, told apart by the weights they hold."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from miles_core.app.fleet_gate import Admission
from miles_core.app.fleet_pulse import Pulse, no_answer
from miles_core.app.fleet_servers import Server
from miles_core.app.fleet_state import FleetState
from miles_core.app.outages import Outages
from miles_core.errors import MilesError, RouterError
from miles_core.lib.tasks import task_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from miles_core.app.fleet_gate import Gate
    from miles_core.app.fleet_servers import Launch
    from miles_core.app.outages import Inspector, Lost

logger = logging.getLogger("miles.engines")

FORGIVEN_AFTER_SECONDS = 3600.0
STRIKES = 3


@dataclass(eq=False)
class FleetUpdate:
    """The engines of one update, and those that it left behind, with the reason."""

    urls: tuple[str, ...]
    lost: dict[str, MilesError] = field(default_factory=dict)


class Fleet(FleetState):
    """All engines of a run.

    An engine gets requests while it runs and holds the committed policy version. One that dies is started again, at
    most ``max_restarts`` times, counted anew once it has served for an hour; it then holds the checkpoint of its
    command, which is version 0, and is behind until an :meth:`update`. One that misses an update, or gives no answer
    for ``patience`` seconds, is left behind: it gets no requests until an update reaches it, and is ended, and so
    started again, when it misses ``STRIKES`` in a row. ``version`` is the committed one at the start; ``outages`` knows
    every death. ``on_lost`` is called with the URL of an engine that is lost, and why. ``updating``: an update is on
    its way; ``updates`` counts those that ended.
    """

    def __init__(
        self,
        launches: Sequence[tuple[str, Launch]],
        inspector: Inspector,
        *,
        version: int,
        max_restarts: int,
        patience: float = 30.0,
        on_lost: Lost | None = None,
    ) -> None:
        super().__init__([Server(name, launch) for name, launch in launches], version)
        self._inspector = inspector
        self._max_restarts = max_restarts
        self._admission = Admission()
        self.outages = Outages(inspector, self._heeded, on_lost)
        self._pulse = Pulse(self._servers, inspector, patience, self._is_silent)
        self._failure: MilesError | None = None
        self._joining = anyio.Lock()
        self.updating = self._at_rest = False
        self.updates = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The time in which engines run; all of them begin to start at once."""
        async with task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(self._keep, server)
            tasks.start_soon(self._pulse.watch)
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
        self._admission.gate = gate
        for server in self._servers:
            await self._admit(server)

    async def watch(self) -> None:
        """Wait until the last engine is lost for good, or the router cannot be told of one.

        Raises:
            MilesError: its death, or what the router said.
        """
        while self._failure is None:
            await self._changed.wait()
        raise self._failure

    @asynccontextmanager
    async def update(
        self, version: int, *, everyone: bool = True, without: Collection[str] = ()
    ) -> AsyncIterator[FleetUpdate]:
        """Bring engines to ``version`` inside the block, which says whom it left behind; at its end it is committed.

        All that run, or else those that are behind, but for those ``without``; one that comes up meanwhile joins after
        the block. One that was left behind before and gives no answer is not waited for: it has missed this one too.
        """
        async with self._joining:
            chosen = [s for s in self._servers if s.url is not None and (everyone or self._is_behind(s))]
            taken = {s.url: s for s in chosen if s.url is not None and s.url not in without}
            await self._leave_silent(taken)
            update = FleetUpdate(tuple(taken))
            self.updating = True
            try:
                async with self.outages.blamed():
                    yield update
            finally:
                self.updating = False
                self.updates += 1
            self._version = version
            for url, server in taken.items():
                if server.url == url and url not in update.lost:
                    server.holds(version)
                    await self._admit(server)
            await self._leave_behind(update.lost)

    async def leave_behind(self, lost: Mapping[str, MilesError], *, end: bool = False) -> None:
        """Give engines no requests until an update reaches them; ``end``: kill them, so that they are started again.

        Their processes are gone by then. Not to be called inside :meth:`update`, whose block says whom it left behind.
        """
        lives = [(server, server.running) for server in self._servers if server.running and server.url in lost]
        async with self._joining:
            await self._leave_behind(lost, end=end)
        while end and any(server.running is life for server, life in lives):
            await self._changed.wait()

    def aborted_since(self, updates: int) -> bool:
        """Whether an abort may come from an update since there were ``updates``; those of :meth:`no_starts` do not."""
        return not self._at_rest and (self.updating or self.updates != updates)

    @asynccontextmanager
    async def no_starts(self) -> AsyncIterator[None]:
        """A block in which no engine is being started or updated: starts that go on are waited for, others wait.

        Not to be entered inside :meth:`update`, whose end the last moment of a start waits for.
        """
        async with AsyncExitStack() as stack:
            for server in self._servers:
                await stack.enter_async_context(server.starting)
            self._at_rest = True
            try:
                yield
            finally:
                self._at_rest = False

    async def _keep(self, server: Server) -> None:
        while True:
            try:
                death = await self._life(server)
            except RouterError as error:  # no restart of an engine would help
                self._fails(error)
                return
            if not server.has_run or server.tries >= self._max_restarts:
                self._lose_for_good(server, death)
                return
            server.restarts += 1
            server.tries += 1
            tries = f"{server.tries} of {self._max_restarts}"
            logger.info("%s", death)
            logger.warning("%s is started again (%s): %s", server.name, tries, _first_line(death))
            if self._admission.gate is not None and not self.serves:
                logger.warning("no engine is left: generation waits")
            await anyio.sleep(server.back_off)

    def _lose_for_good(self, server: Server, death: MilesError) -> None:
        """The run goes on with the others, if it had begun and there are any."""
        server.gone = True
        if not server.has_run or all(each.gone for each in self._servers):
            self._fails(death)
            return
        logger.info("%s", death)
        what = f"{server.name} is not started again after {server.tries} restarts, others go on"
        logger.warning("%s: %s", what, _first_line(death))

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
                        server.starts(running)
                        self._notify()
                await self._admit(server)
                death = await running.ended()
                await self._dies(server, death)
                return death
        except RouterError:
            raise
        except MilesError as error:
            return error
        finally:
            server.url = server.serving_since = server.running = None
            self._notify()

    async def _dies(self, server: Server, death: MilesError) -> None:
        url, since = server.url, server.serving_since
        server.url = server.serving_since = None
        if since is not None and time.monotonic() - since >= FORGIVEN_AFTER_SECONDS:
            server.tries = 0
        self.outages.died(death)
        self._notify()
        if since is not None and url is not None:
            await self._admission.withdraw(url)
        if url is not None:
            await self.outages.lost(url, _first_line(death))

    async def _admit(self, server: Server) -> None:
        if await self._admission.admit(server, self._version):
            self.outages.returned(server.url or "")
            self._notify()
            if server.restarts:
                logger.warning("%s serves again", server.name)

    async def _leave_silent(self, taken: dict[str, Server]) -> None:
        """Take those out that were left behind before and give no answer."""
        silent: dict[str, MilesError] = {}

        async def ask(url: str) -> None:
            if not await self._inspector.answers(url):
                silent[url] = no_answer(url)

        async with task_group() as tasks:
            for url, server in taken.items():
                if server.strikes:
                    tasks.start_soon(ask, url)
        await self._leave_behind(silent)
        for url in silent:
            del taken[url]

    async def _is_silent(self, server: Server, url: str) -> None:
        """Leave a server behind that was silent for too long, unless an update, with its own patience, has done so."""
        async with self._joining:
            if server.url == url and server.serving_since is not None and not await self._inspector.answers(url):
                try:
                    await self._leave_behind({url: no_answer(url)})
                except RouterError as error:
                    self._fails(error)

    async def _leave_behind(self, lost: Mapping[str, MilesError], *, end: bool = False) -> None:
        for server in self._servers:
            url = server.url
            if url is None or url not in lost:
                continue
            said, served = _first_line(lost[url]), server.serving_since is not None
            level = logging.WARNING if server.strike(lost[url]) else logging.INFO
            logger.log(level, "%s is left behind: %s", server.name, said)
            server.serving_since = None
            if served:
                await self.outages.left_behind(url, said)
                await self._admission.withdraw(url, drop=True)
            self._notify()
            if end or server.strikes >= STRIKES:
                logger.warning("%s is ended, it missed %d in a row: %s", server.name, server.strikes, said)
                server.end()

    def _heeded(self) -> Sequence[str]:
        """Engines whose silence would be news."""
        return [server.url for server in self._servers if server.url is not None and not server.strikes]


def _first_line(error: MilesError) -> str:
    return error.message.splitlines()[0].removesuffix("; the end of its log:")
