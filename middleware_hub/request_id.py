"""Gives every request an id that engine, router and client share."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from miles_core.api import PluginContext


class RequestId:
    """Takes the client's id or makes one, passes it to the worker and returns it on the answer."""

    class Config(BaseModel):
        """Options of ``request_id``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        header: str = Field("x-request-id", pattern=r"^[A-Za-z0-9-]+$", description="header that carries the id")

    def __init__(self, app: ASGIApp, config: Config, context: PluginContext) -> None:
        self._app = app
        self._header = config.header.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = self._header
        value = next((value for name, value in scope["headers"] if name == header and value), None)
        if value is None:
            value = uuid.uuid4().hex.encode()
            others = [pair for pair in scope["headers"] if pair[0] != header]
            scope = {**scope, "headers": [*others, (header, value)]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if pair[0].lower() != header]
                message = {**message, "headers": [*others, (header, value)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
