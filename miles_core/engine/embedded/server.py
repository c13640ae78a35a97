"""The embedded engine as a Starlette app."""

from __future__ import annotations

from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from miles_core.engine.embedded import control_routes
from miles_core.engine.embedded.generate_route import generate
from miles_core.engine.embedded.unavailable import EngineUnavailable
from miles_core.errors import EngineRequestError, MilesError, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request

    from miles_core.engine.embedded.engine import EmbeddedEngine

_FOREIGN_UPDATES = (
    "/begin_weight_update",
    "/end_weight_update",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
)


def create_app(
    engine: EmbeddedEngine,
    extra_routes: Sequence[Route] = (),
    *,
    discarding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Starlette:
    """SGLang's HTTP API over ``engine``, whose thread lives as long as the app's lifespan.

    ``extra_routes`` add endpoints; their handlers find the engine in ``request.app.state.engine``. Errors answer
    ``{"error": {"message": ...}}``. ``discarding`` is entered around each release of the weights' memory, so that
    whoever writes weights stays away meanwhile and knows that they are lost.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        engine.start()
        try:
            yield
        finally:
            await to_thread.run_sync(engine.close)

    app = Starlette(
        routes=[*_routes(), *extra_routes],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, MilesError: _miles_error},
    )
    app.state.engine = engine
    app.state.discarding = discarding
    return app


def _routes() -> list[Route]:
    either = ["GET", "POST"]
    return [
        Route("/generate", generate, methods=["POST", "PUT"]),
        Route("/health", control_routes.health),
        Route("/ready", control_routes.health),
        Route("/health_generate", control_routes.health_generate),
        Route("/model_info", control_routes.model_info),
        Route("/get_model_info", control_routes.model_info),
        Route("/server_info", control_routes.server_info),
        Route("/get_server_info", control_routes.server_info),
        Route("/abort_request", control_routes.abort_request, methods=["POST"]),
        Route("/pause_generation", control_routes.pause_generation, methods=["POST"]),
        Route("/continue_generation", control_routes.continue_generation, methods=["POST"]),
        Route("/flush_cache", control_routes.flush_cache, methods=either),
        Route("/update_weight_version", control_routes.update_weight_version, methods=["POST"]),
        Route("/release_memory_occupation", control_routes.release_memory, methods=either),
        Route("/resume_memory_occupation", control_routes.resume_memory, methods=either),
        *(Route(path, control_routes.foreign_update, methods=["POST"]) for path in _FOREIGN_UPDATES),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return _error(error.status_code, message)


async def _miles_error(request: Request, error: Exception) -> Response:
    del request
    if isinstance(error, EngineRequestError):
        return _error(HTTPStatus.BAD_REQUEST, str(error))
    if isinstance(error, WeightSyncError):
        return _error(HTTPStatus.CONFLICT, str(error))
    if isinstance(error, EngineUnavailable):
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status)
