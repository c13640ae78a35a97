"""HTTP failures in words."""

from __future__ import annotations

import json


def describe(error: BaseException) -> str:
    """An exception in words; time-outs have no text of their own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def server_message(raw: bytes) -> str:
    """The message in an error body: ``{"error": {"message": ...}}``, other JSON shapes, or plain text."""
    try:
        body = json.loads(raw)
    except ValueError:
        return raw[:500].decode("utf-8", "replace").strip() or "no message"
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return body if isinstance(body, str) else json.dumps(body)
