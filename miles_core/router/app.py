"""The router as one ASGI app."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from miles_core.router.boundary import NamedMiddleware, stack
from miles_core.router.endpoints import Endpoints
from miles_core.router.policy import policy_named
from miles_core.router.proxy import Proxy
from miles_core.router.settings import RouterSettings
from miles_core.router.upstream import Upstream
from miles_core.router.workers import WorkerRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send


def create_app(
    workers: Sequence[str] = (),
    settings: RouterSettings = RouterSettings(),  # noqa: B008 - frozen
    middlewares: Sequence[NamedMiddleware] = (),
) -> ASGIApp:
    """The router's ASGI app; needs a server that runs its lifespan.

    ``workers`` are root URLs. Each middleware is ``(name, wrap)``; the first is the outermost, and all of them see the
    router's own endpoints too. The workers' ``date`` and ``server`` headers are kept, so the server should add none.

    Raises:
        ConfigError: if there is no such policy.
        RouterError: if a worker's URL is malformed.
    """
    registry = WorkerRegistry(workers, policy_named(settings.policy))
    upstream = Upstream(settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with upstream:
            yield

    own = Starlette(routes=Endpoints(registry).routes(), lifespan=lifespan)
    return stack(Dispatch(own, Proxy(registry, upstream, settings)), middlewares)


class Dispatch:
    """Sends the router's own paths, and all that is not HTTP, to ``own``; the rest to ``proxy``."""

    def __init__(self, own: Starlette, proxy: ASGIApp) -> None:
        self._own = own
        self._paths = frozenset(getattr(route, "path", "") for route in own.routes)
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one connection on."""
        # A set, because matching eight routes costs as much as the rest of a proxied request's Python here.
        is_own = scope["type"] != "http" or scope["path"] in self._paths
        await (self._own if is_own else self._proxy)(scope, receive, send)
