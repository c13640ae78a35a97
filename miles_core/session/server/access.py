"""Which session a request means: the one in its path, or the one that its key names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from starlette.types import Scope

    from miles_core.session.registry import OpenSession, SessionRegistry

_BEARER = "bearer "


def session_of(scope: Scope, registry: SessionRegistry) -> OpenSession:
    """The session of a request.

    Raises:
        ClientError: 404 for a path that names none; 401 for a key that names none, or another one than the path.
    """
    keys = _keys(scope)
    in_path = scope.get("path_params", {}).get("id")
    named = [opened for key in keys if (opened := _opened(registry, key))]
    if in_path is None:
        if any(other is not named[0] for other in named):
            raise ClientError("two API keys name two sessions", status=401, code="invalid_api_key")
        if named:
            return named[0]
        raise ClientError(
            "no API key came" if not keys else "the API key names no open session: it may have expired or was closed",
            status=401,
            code="invalid_api_key",
            remedy="Use the api_key that POST /sessions gave, or the base_url.",
        )
    opened = path_session(registry, in_path)
    if any(other is not opened for other in named):
        raise ClientError("the API key is that of another session than the path", status=401, code="invalid_api_key")
    return opened


def path_session(registry: SessionRegistry, session_id: str) -> OpenSession:
    """The session that a path names.

    Raises:
        ClientError: 404 if there is none.
    """
    try:
        return registry.opened(session_id)
    except SessionError as error:
        raise ClientError(error.message, status=404, code="session_not_found", remedy=error.remedy) from error


def _opened(registry: SessionRegistry, key: str) -> OpenSession | None:
    try:
        return registry.opened(key)
    except SessionError:
        return None


def _keys(scope: Scope) -> list[str]:
    """OpenAI's SDKs send ``Authorization: Bearer KEY``, Anthropic's ``x-api-key: KEY``."""
    keys = []
    for name, raw in scope["headers"]:
        value = raw.decode("latin-1").strip()
        if name == b"x-api-key":
            keys.append(value)
        elif name == b"authorization" and value.lower().startswith(_BEARER):
            keys.append(value[len(_BEARER) :].strip())
    return [key for key in keys if key]
