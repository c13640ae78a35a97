"""What a client is told of an error."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.exceptions import HTTPException

from miles_core.errors import BudgetSpent, EngineError, EngineRequestError, MilesError, RoutingError, SessionError
from miles_core.lib.error_text import error_text
from miles_core.session.registry import RegistryFull
from miles_core.session.server.request import ClientError

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5
_BASE_URL = "The base_url of OpenAI's clients ends in /v1, that of Anthropic's does not."


def client_error(error: Exception) -> ClientError:
    """The answer to an error; those that nobody expects are logged.

    A request that the engine calls wrong is a 400, an engine that failed a 502, which SDKs try again. A spent budget
    has the code ``context_length_exceeded``: what clients know as "no more tokens here".
    """
    if isinstance(error, ClientError):
        return error
    if isinstance(error, RecursionError):
        return ClientError("the body is nested too deeply", code="invalid_json")
    if isinstance(error, HTTPException):
        remedy = _BASE_URL if error.status_code == HTTPStatus.NOT_FOUND else None
        return ClientError(str(error.detail), status=error.status_code, remedy=remedy)
    if isinstance(error, BudgetSpent):
        return _told(error, 400, "context_length_exceeded")
    if isinstance(error, EngineRequestError):
        return _told(error, 400, "invalid_request")
    if isinstance(error, RegistryFull):
        return _told(error, 503, "too_many_sessions", _RETRY_SECONDS)
    if isinstance(error, EngineError | RoutingError):
        log.warning("the engine failed a session: %s", error)
        return _told(error, 502, "engine_error")
    if isinstance(error, SessionError):
        log.warning("a session failed: %s", error)
        return _told(error, 500, "session_error")
    log.error("the session server failed", exc_info=error)
    return ClientError(f"the session server failed: {error_text(error)}", status=500, code="internal_error")


def _told(error: MilesError, status: int, code: str, retry_after: int | None = None) -> ClientError:
    return ClientError(error.message, status=status, code=code, retry_after=retry_after, remedy=error.remedy)


def closed() -> ClientError:
    """The answer to a request whose session is closed while it runs."""
    return ClientError("the session has expired or was closed", status=404, code="session_closed")
