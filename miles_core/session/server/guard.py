"""The outermost layer of the server: every error is answered in the form of the dialect that was spoken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.session.server.body import ClientGone
from miles_core.session.server.dialect import CountingDialect
from miles_core.session.server.failures import client_error
from miles_core.session.server.responses import error_headers, send_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from miles_core.session.server.dialect import Dialect


class Guard:
    """Answers what ``app`` raises; paths of no dialect get errors in the form of the first one."""

    def __init__(self, app: ASGIApp, dialects: Sequence[Dialect]) -> None:
        self._app = app
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["app"] = self  # or Starlette's router answers wrong paths and methods itself, in plain text
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGone:
            return
        except Exception as failure:
            if started:
                raise
            error = client_error(failure)
            body = self._spoken(scope["path"]).error(error.status, error.text, code=error.code, param=error.param)
            await send_json(send, error.status, body, error_headers(error))

    def _spoken(self, path: str) -> Dialect:
        for dialect in self._dialects:
            if path.endswith(dialect.path) or (
                isinstance(dialect, CountingDialect) and path.endswith(dialect.count_path)
            ):
                return dialect
        return self._dialects[0]
