"""When what failed is tried again: soon at first, then ever less often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

LONGEST_SECONDS = 300.0


class Retries:
    """Failures by key, such as an engine's URL; the pause doubles with each, up to five minutes."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, key: str) -> None:
        """Note a failure now."""
        count, _ = self._failures.get(key, (0, 0.0))
        self._failures[key] = count + 1, time.monotonic()

    def keep(self, keys: Collection[str]) -> None:
        """Forget all others: they succeeded, or are gone."""
        self._failures = {key: value for key, value in self._failures.items() if key in keys}

    def wait(self, key: str, first: float) -> float:
        """Seconds until it is tried again, none where it has not failed; ``first`` is the pause after one failure."""
        if key not in self._failures:
            return 0.0
        count, failed_at = self._failures[key]
        pause = min(LONGEST_SECONDS, first * 2.0 ** min(count - 1, 16))
        return max(0.0, failed_at + pause - time.monotonic())
