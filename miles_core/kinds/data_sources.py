"""Data sources: they yield tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from miles_core.types import Task


@runtime_checkable
class DataSource(Protocol):
    """An endless supply of tasks in a reproducible order.

    The order is a function of the context's seed and the epoch.
    """

    def __len__(self) -> int:
        """Tasks per epoch."""

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks with the epoch that each belongs to."""


KIND = Kind(
    plural="data_sources",
    singular="data source",
    summary="yields the tasks to train on",
    members=("__len__", "take"),
)
