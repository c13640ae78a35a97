"""Policy versions, and how many weight updates lie between two of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkippedVersions:
    """Version numbers behind which no weight update stands.

    A run that was killed may have told engines of versions that its last checkpoint does not know. Numbers only grow,
    so the run that goes on publishes the weights of the checkpoint under the next free number: that one and all since
    the checkpoint's are skipped. ``ranges`` are the first and the last of each, ascending and apart.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def extended(self, first: int, last: int) -> SkippedVersions:
        """These, and ``first`` to ``last``, which come after them."""
        return SkippedVersions((*self.ranges, (first, last)))

    def updates(self, older: int, newer: int) -> int:
        """How many weight updates lead from version ``older`` to version ``newer``."""
        skipped = sum(max(0, min(last, newer) - max(first, older + 1) + 1) for first, last in self.ranges)
        return newer - older - skipped

    def oldest(self, version: int, updates: int) -> int:
        """The oldest version that at most ``updates`` weight updates separate from ``version``."""
        at, left = version, updates
        for first, last in reversed(self.ranges):
            if first > at:
                continue
            between = max(0, at - last)
            if left < between:
                break
            left -= between
            at = first - 1
        return at - left


NONE_SKIPPED = SkippedVersions()
"""Those of a run that was never resumed."""
