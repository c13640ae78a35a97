"""What may be sent to a second worker, and how long an overloaded one is left alone."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIED_METHODS = frozenset({"GET"})
RETRIED_CALLS = frozenset({("POST", "/generate")})
"""All else is sent once: a weight update that is sent twice waits for a partner that never comes."""

OVERLOADED = frozenset({429, 503})
RETRIED_STATUSES = OVERLOADED | {500, 502, 504}


def may_retry(method: str, path: str) -> bool:
    """Whether a request that failed before its first byte may be sent again."""
    return method in RETRIED_METHODS or (method, path) in RETRIED_CALLS


def retry_after_seconds(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date; ``None`` if it says neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (date.astimezone(UTC) - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
