"""Trackers: they record metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping


@runtime_checkable
class Tracker(Protocol):
    """Gets the metrics of every step, in order, in a thread of its own; it may block and may raise.

    Services of its context, beside ``run_dir``:

    * ``config``: the resolved config, as plain dictionaries, lists and values
    * ``run_id``: the name of the run's folder
    * ``resume_step``: ``None`` in a new run, else the step that the run goes on from; metrics of later steps were
      perhaps recorded before, and come again

    An unfinished ``close`` is left behind after some seconds, so that it never holds up the end of a run.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step; values may be infinite or NaN."""

    def close(self) -> None:
        """Flush and release."""


KIND = Kind(
    plural="trackers",
    singular="tracker",
    summary="records the metrics of every step",
    table="[[trackers]]",
    protocol=Tracker,
    members=("log", "close"),
)
