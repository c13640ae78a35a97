"""The session server inside a run: what agents reach the policy through."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn

from miles_core.app.http_server import bind, server_config, url_of
from miles_core.app.planes import environment_factories
from miles_core.errors import ConfigError, RolloutError, SessionError
from miles_core.kinds.environments import is_agent
from miles_core.lib.tasks import task_group
from miles_core.rollout.agents import Endpoint
from miles_core.session.registry import SessionRegistry
from miles_core.session.server.app import create_app
from miles_core.types import MAIN_AGENT

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from miles_core.app.wiring import Wiring
    from miles_core.config.serving import SessionTable
    from miles_core.session.served import Served

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what is bound, and where this host finds it


@dataclass(frozen=True, slots=True)
class SessionServer:
    """Implements :class:`miles_core.rollout.agents.Endpoints` over the server that listens at ``url``."""

    registry: SessionRegistry
    url: str

    @contextmanager
    def serving(self, session: Served) -> Iterator[Endpoint]:
        """Serve a session until the block is left."""
        key = self.registry.add(session, kept=True)
        try:
            yield Endpoint(f"{self.url}/sessions/{key}/v1", key)
        finally:
            with suppress(SessionError):  # the agent may have closed it
                self.registry.remove(key)


class _Server(uvicorn.Server):
    """A server inside a process that handles its signals itself."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def session_server(wiring: Wiring) -> AsyncIterator[SessionServer | None]:
    """Serve sessions in this event loop where an environment of the config is an agent; nothing otherwise.

    Raises:
        RolloutError: if ``[session] port`` is in use.
    """
    if not has_agents(wiring):
        yield None
        return
    async with serve_sessions(wiring.config.session) as server:
        yield server


@asynccontextmanager
async def serve_sessions(table: SessionTable) -> AsyncIterator[SessionServer]:
    """Serve sessions in this event loop.

    Raises:
        RolloutError: if the port is in use.
    """
    registry = SessionRegistry(ttl=table.ttl, max_sessions=table.max_sessions)
    app = create_app(registry, open_session=None, model=MAIN_AGENT, max_body_bytes=table.max_body_bytes)
    with bind(table.host, table.port, RolloutError, "session server") as bound:
        server = _Server(server_config(app))
        async with task_group() as tasks:
            tasks.start_soon(_serve, server, bound)
            await server.ready.wait()
            try:
                yield SessionServer(registry, url_of(bound, _WILDCARDS.get(table.host)))
            finally:
                server.should_exit = True


async def _serve(server: _Server, bound: socket.socket) -> None:
    """Serve until ``should_exit``: a server that is cancelled logs that as a fault."""
    with anyio.CancelScope(shield=True):
        await server.serve([bound])


def has_agents(wiring: Wiring) -> bool:
    """Whether one of the config's environments is an agent."""
    return any(map(is_agent, environment_factories(wiring)))


def check_agents(wiring: Wiring) -> None:
    """Refuse a function that would generate the episodes of agents, which generate their own.

    Raises:
        ConfigError: naming the key.
    """
    table = wiring.config.rollout.generate
    if table is not None and has_agents(wiring):
        raise ConfigError(
            f"rollout.generate = {table.use!r} would have no effect: an environment of the config is an agent, which "
            "has run() in place of turns",
            remedy="Leave rollout.generate out, or use environments with reset() and step().",
        )
