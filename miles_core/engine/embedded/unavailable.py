"""The error that the HTTP server answers as 503."""

from __future__ import annotations

from miles_core.errors import EngineError


class EngineUnavailable(EngineError):  # noqa: N818 - reads as in "503 Service Unavailable"
    """The engine is out of service for now; another worker may serve the request."""
