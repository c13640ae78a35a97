"""A token bucket: a steady rate with room for a burst."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most ``burst`` tokens and gains ``rate`` tokens per second; each request takes one.

    ``filled`` is when ``tokens`` was right; ``refused`` counts the requests that found none.
    """

    rate: float
    burst: int
    tokens: float
    filled: float
    refused: int = 0

    def take(self, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one; ``now`` never goes back."""
        self.tokens = min(self.tokens + (now - self.filled) * self.rate, self.burst)
        self.filled = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        self.refused += 1
        return (1 - self.tokens) / self.rate
