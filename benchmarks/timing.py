"""Comparisons that survive a noisy machine: cases take turns, and the spread is shown."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Value


class Timings:
    """Seconds of several cases, ``yardstick`` among them, measured in turns."""

    def __init__(self, cases: Sequence[str], yardstick: str) -> None:
        self._cases = tuple(cases)
        self._yardstick = yardstick
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    def rounds(self, repeats: int) -> Iterator[str]:
        """Every case once a round, back and forth, so that a slow spell of the machine hits all of them."""
        for number in range(repeats):
            yield from self._cases if number % 2 == 0 else reversed(self._cases)

    def add(self, case: str, seconds: float) -> None:
        """Record one measurement."""
        self._seconds[case].append(seconds)

    def fastest(self, case: str) -> float:
        """The least seconds of a case: what the code costs when the machine does nothing else."""
        return min(self._seconds[case])

    def median(self, case: str) -> float:
        """The median seconds of a case."""
        return median(self._seconds[case])

    def slowdown(self, case: str) -> float:
        """The case's fastest time over the yardstick's."""
        return self.fastest(case) / self.fastest(self._yardstick)

    def row(self, case: str) -> dict[str, Value]:
        """Seconds of a case, their spread (max / min), and ratios to the yardstick by fastest and by median."""
        seconds = self._seconds[case]
        return {
            "case": case,
            "min_s": min(seconds),
            "median_s": self.median(case),
            "max_s": max(seconds),
            "spread": max(seconds) / min(seconds),
            "ratio_min": self.slowdown(case),
            "ratio_median": self.median(case) / self.median(self._yardstick),
        }

    def rate_row(self, case: str, amount: float, unit: str) -> dict[str, Value]:
        """``amount`` per second of a case, and ratios to the yardstick at the same amount; above 1 is faster."""
        seconds = self._seconds[case]
        return {
            "case": case,
            f"best_{unit}": amount / min(seconds),
            f"median_{unit}": amount / self.median(case),
            f"worst_{unit}": amount / max(seconds),
            "spread": max(seconds) / min(seconds),
            "ratio_best": 1 / self.slowdown(case),
            "ratio_median": self.median(self._yardstick) / self.median(case),
        }
