"""Numbers that come from plugins."""

from __future__ import annotations

import math


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float; an integer too large for one is not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
