"""Refuses requests of a client that sends too many."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from acme_gateway.bucket import Bucket

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from miles_core.api import PluginContext


class RateLimit:
    """Answers 429 with ``retry-after`` where a client exceeds its rate; whatever it lets through is untouched.

    A client is what ``header`` says, else the address that the request comes from. Only POST requests below ``paths``
    count: health checks and control requests always pass. Of the clients, the ``clients`` most recent are remembered.
    """

    class Config(BaseModel):
        """Options of ``[[router.middleware]] use = "rate_limit"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        rate: float = Field(100.0, gt=0, description="requests per second of one client, on average")
        burst: int = Field(1000, ge=1, description="requests of one client at once")
        header: str = Field("x-client-id", pattern=r"^[A-Za-z0-9-]+$", description="header that names the client")
        paths: tuple[str, ...] = Field(("/generate", "/v1/"), description="beginnings of the limited paths")
        clients: int = Field(10_000, ge=1, description="clients that are remembered")

    def __init__(self, app: ASGIApp, config: Config, context: PluginContext) -> None:
        self._app = app
        self._config = config
        self._header = config.header.lower().encode()
        self._logger = context.logger
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one ASGI connection on, or refuse it."""
        wait = self._wait(self._client(scope)) if self._limited(scope) else 0.0
        if not wait:
            await self._app(scope, receive, send)
            return
        body = {"error": {"message": f"too many requests; try again in {wait:.3f} s", "type": "rate_limit"}}
        response = JSONResponse(body, status_code=429, headers={"retry-after": str(math.ceil(wait))})
        await response(scope, receive, send)

    def _limited(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] != "POST":
            return False
        return str(scope["path"]).startswith(self._config.paths)

    def _wait(self, client: str) -> float:
        now, burst = time.monotonic(), self._config.burst
        bucket = self._buckets.pop(client, None) or Bucket(self._config.rate, burst, burst, now)
        self._buckets[client] = bucket  # the most recent stands last
        if len(self._buckets) > self._config.clients:
            self._buckets.popitem(last=False)
        wait = bucket.take(now)
        if wait and bucket.refused == 1:  # once per client, since refusals come in floods
            self._logger.warning("client %s sends more than %g requests per second", client, self._config.rate)
        return wait

    def _client(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name.lower() == self._header:
                return str(value.decode("latin-1"))
        return str(scope["client"][0]) if scope.get("client") else "unknown"
