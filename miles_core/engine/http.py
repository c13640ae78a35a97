"""HTTP failures in words."""

from __future__ import annotations

import json

from miles_core.errors import EngineError, EngineRequestError

_NOT_THE_REQUEST = frozenset({401, 403, 404, 405, 408, 429})
"""Refused for the address, a key or the moment, and not for what was asked."""


def describe(error: BaseException) -> str:
    """An exception in words; time-outs have no text of their own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def server_message(raw: bytes) -> str:
    """The message in an error body: ``{"error": {"message": ...}}``, other JSON shapes, or plain text."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return raw[:500].decode("utf-8", "replace").strip() or "no message"
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return body if isinstance(body, str) else json.dumps(body)


def refusal(status: int, message: str) -> EngineError:
    """The error for a status of 400 or more: an ``EngineRequestError`` where the request is at fault."""
    invalid = 400 <= status < 500 and status not in _NOT_THE_REQUEST
    return EngineRequestError(message) if invalid else EngineError(message)
