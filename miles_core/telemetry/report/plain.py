"""What plugins put into records, as JSON that every browser reads."""

from __future__ import annotations

import math
from typing import Any

_EXACT = 2**53
"""A browser's numbers are float64: whole numbers beyond this are not exact."""

_ARRAY_VALUES = 64


def plain(value: Any) -> Any:
    """JSON without NaN, without whole numbers that a browser would round, and without large arrays."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "dtype"):
        return plain(value.tolist()) if value.size <= _ARRAY_VALUES else f"array {value.dtype} {list(value.shape)}"
    return repr(value)
