"""The session server as one ASGI app."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.routing import Route, Router

from miles_core.session.server.admin import Admin
from miles_core.session.server.dialect import CountingDialect
from miles_core.session.server.dialects import DIALECTS
from miles_core.session.server.endpoint import CountEndpoint, GenerateEndpoint
from miles_core.session.server.guard import Guard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp

    from miles_core.session.registry import SessionRegistry
    from miles_core.session.server.admin import OpenSessionFor
    from miles_core.session.server.dialect import Dialect

_SWEEPS_PER_TTL = 4


def create_app(
    registry: SessionRegistry,
    *,
    open_session: OpenSessionFor | None,
    model: str,
    max_body_bytes: int,
    dialects: Sequence[Dialect] = DIALECTS,
) -> ASGIApp:
    """The server of the sessions in ``registry``; needs a server that runs its lifespan.

    ``open_session`` makes the session for a ``POST /sessions``, which is refused where it is ``None``. ``model`` is the
    name of the served model.
    """

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_sweep, registry)
            yield
            tasks.cancel_scope.cancel()

    admin = Admin(registry, open_session, model=model, max_body_bytes=max_body_bytes)
    routes = admin.routes()
    for dialect in dialects:
        routes += _routes(dialect, registry, model, max_body_bytes)
    return Guard(Router(routes, redirect_slashes=False, lifespan=lifespan), dialects)


def _routes(dialect: Dialect, registry: SessionRegistry, model: str, max_body_bytes: int) -> list[Route]:
    endpoints: list[tuple[str, ASGIApp]] = [
        (dialect.path, GenerateEndpoint(dialect, registry, model=model, max_body_bytes=max_body_bytes))
    ]
    if isinstance(dialect, CountingDialect):
        counting = CountEndpoint(dialect, registry, model=model, max_body_bytes=max_body_bytes)
        endpoints.append((dialect.count_path, counting))
    return [
        Route(prefix + path, endpoint, methods=["POST"])
        for path, endpoint in endpoints
        for prefix in ("", "/sessions/{id}")
    ]


async def _sweep(registry: SessionRegistry) -> None:
    """Free the memory of expired sessions although nobody asks for any."""
    while True:
        await anyio.sleep(registry.ttl / _SWEEPS_PER_TTL)
        registry.sweep()
