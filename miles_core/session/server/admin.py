"""Endpoints for whoever opens sessions and trains on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.responses import Response
from starlette.routing import Route

from miles_core.errors import ConfigError, SessionError
from miles_core.session.record import session_record
from miles_core.session.server.access import path_session
from miles_core.session.server.body import read_json
from miles_core.session.server.opening import parse_opening
from miles_core.session.server.request import ClientError
from miles_core.session.server.responses import JsonResponse
from miles_core.session.server.sample_records import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from miles_core.session.registry import SessionRegistry
    from miles_core.session.served import Served
    from miles_core.session.server.opening import OpenRequest

    OpenSessionFor: TypeAlias = Callable[[OpenRequest], Served]


class Admin:
    """Opens, shows, hands out and closes sessions."""

    def __init__(
        self, registry: SessionRegistry, open_session: OpenSessionFor | None, *, model: str, max_body_bytes: int
    ) -> None:
        self._registry = registry
        self._open_session = open_session
        self._model = model
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[Route]:
        """The endpoints."""
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/sessions", self.open, methods=["POST"]),
            Route("/sessions/{id}", self.show),
            Route("/sessions/{id}", self.close, methods=["DELETE"]),
            Route("/sessions/{id}/samples", self.samples, methods=["POST"]),
            Route("/sessions/{id}/v1/models", self.models),
        ]

    async def health(self, request: Request) -> Response:
        """Whether the server lives, and how many sessions are open."""
        del request
        return JsonResponse({"status": "ok", "sessions": len(self._registry)})

    async def models(self, request: Request) -> Response:
        """The one model, as OpenAI's SDK lists it."""
        if "id" in request.path_params:
            path_session(self._registry, request.path_params["id"])
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "miles"}
        return JsonResponse({"object": "list", "data": [model]})

    async def open(self, request: Request) -> Response:
        """Open a session."""
        wanted = parse_opening(await self._body(request))
        if self._open_session is None:
            raise ClientError(
                "sessions of this server are opened by the run, not by clients",
                status=403,
                code="opened_by_the_run",
                remedy="Use the base_url and api_key that the run gives to the agent.",
            )
        self._registry.check_room()
        try:
            served = self._open_session(wanted)
        except (SessionError, ConfigError) as error:
            raise ClientError(error.message, remedy=error.remedy) from error
        session_id = self._registry.add(served)
        base_url = f"{request.base_url}sessions/{session_id}/v1"
        return JsonResponse({"id": session_id, "api_key": session_id, "base_url": base_url}, status_code=201)

    async def show(self, request: Request) -> Response:
        """The record of a session."""
        served = path_session(self._registry, request.path_params["id"]).served
        return JsonResponse({"id": request.path_params["id"], **session_record(served.session)})

    async def samples(self, request: Request) -> Response:
        """The samples of a session so far."""
        served = path_session(self._registry, request.path_params["id"]).served
        return JsonResponse(samples_of(served.session, await self._body(request)))

    async def close(self, request: Request) -> Response:
        """Close a session; what is in flight is cancelled."""
        path_session(self._registry, request.path_params["id"])
        self._registry.remove(request.path_params["id"])
        return Response(status_code=204)

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_json(request.scope, request.receive, self._max_body_bytes)
