"""Trackers: they record metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class Tracker(Protocol):
    """Gets the metrics of every step, in order."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step."""

    def close(self) -> None:
        """Flush and release."""


KIND = Kind(
    plural="trackers",
    singular="tracker",
    summary="records the metrics of every step",
    members=("log", "close"),
)
