"""The seams between router middlewares: who raised is found and named."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import MilesError
from miles_core.lib.error_text import error_text
from miles_core.router.errors import error_answer, send_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NamedMiddleware: TypeAlias = "tuple[str, Callable[[ASGIApp], ASGIApp]]"
_CULPRIT = "_miles_router_layer"
_logger = logging.getLogger("miles.router")


def stack(app: ASGIApp, middlewares: Sequence[NamedMiddleware]) -> ASGIApp:
    """Wrap ``app``, the first middleware outermost, with a ``Boundary`` on every seam."""
    outsides = ["server", *(f"middleware {name}" for name, _ in middlewares)]
    app = Boundary(app, inside="router", outside=outsides[-1])
    for index in reversed(range(len(middlewares))):
        app = Boundary(middlewares[index][1](app), inside=outsides[index + 1], outside=outsides[index])
    return app


class Boundary:
    """Answers 500 for the layer ``inside`` if that raises, so that the layers outside see an answer, not an error.

    An error that a layer outside raised, in its ``send`` or ``receive``, goes back to that layer. One that comes after
    the answer began goes out to the server, which closes the connection.
    """

    def __init__(self, app: ASGIApp, *, inside: str, outside: str) -> None:
        self._app = app
        self._inside = inside
        self._outside = outside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one connection on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def receive_from_outside() -> Message:
            try:
                return await receive()
            except BaseException as error:
                _culprit(error, self._outside)
                raise

        async def send_outside(message: Message) -> None:
            nonlocal started
            started = True
            try:
                await send(message)
            except BaseException as error:
                _culprit(error, self._outside)
                raise

        try:
            await self._app(scope, receive_from_outside, send_outside)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # a SystemExit too: it is the layer's, not the server's
            if _culprit(error, self._inside) != self._inside or started:
                raise
            _logger.exception("%s failed at %s %s", self._inside, scope["method"], scope["path"])
            await send_all(_failure(self._inside, error), send)


def _culprit(error: BaseException, layer: str) -> str:
    """The layer that an error is put down to: the first that it passed."""
    if not hasattr(error, _CULPRIT):
        setattr(error, _CULPRIT, layer)
    culprit: str = getattr(error, _CULPRIT)
    return culprit


def _failure(layer: str, error: BaseException) -> list[Message]:
    kind = "router_failed" if layer == "router" else "middleware_failed"
    text = f"{type(error).__name__}: {error}" if isinstance(error, MilesError) else error_text(error)
    message = f"{layer} raised {text}"
    return error_answer(500, kind, message, "See the router's log for the traceback.")
