"""Router middlewares: pure ASGI classes around the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


@runtime_checkable
class RouterMiddleware(Protocol):
    """A pure ASGI middleware, made by ``cls(app, config, context)``.

    It passes ``lifespan`` on and never buffers a stream. The first in the config file is the outermost.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""


KIND = Kind(
    plural="router_middlewares",
    singular="router middleware",
    summary="an ASGI layer around the router",
    table="[[router.middleware]]",
    protocol=RouterMiddleware,
    members=("__call__",),
    awaited={"__call__": True},
    wraps_app=True,
)
