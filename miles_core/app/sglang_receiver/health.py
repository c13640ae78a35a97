"""``/health`` of a server whose weights must not serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import EngineError, WeightSyncError
from miles_core.weights.routes import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from miles_core.app.sglang_receiver.front import Front

_PATHS = frozenset({"/health", "/health_generate"})


class ServiceHealth:
    """Answers 503 with the reason while there is one; otherwise the server's own health answers."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["path"] in _PATHS:
            try:
                await self._front.check_service()
            except (EngineError, WeightSyncError) as error:
                await error_response(503, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
