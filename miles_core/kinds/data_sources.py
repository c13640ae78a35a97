"""Data sources: they yield tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.types import Task


@dataclass(frozen=True, slots=True)
class InspectedRow:
    """One row as ``miles data check`` shows it.

    ``where()`` names file and line. ``columns`` maps the row's columns to their types, each in a word. ``task`` is
    ``None`` where ``problem`` says what is wrong. ``progress`` is the share of the data before this row, from 0 to 1.
    """

    where: Callable[[], str]
    columns: Mapping[str, str]
    task: Task | None
    problem: str = ""
    progress: float = 0.0


@runtime_checkable
class DataSource(Protocol):
    """A supply of tasks in a reproducible order, pass after pass.

    The order is a function of the context's seed and the epoch. Services: ``base_dir``, the folder that relative paths
    start from; ``build_source(options)``, which makes the source that a nested table names.

    An optional class method ``inspect(config, context) -> Iterator[InspectedRow]`` goes through all rows, good or bad,
    for ``miles data check``; a source of sources gets those of a nested table from the service
    ``inspect_source(options)``.
    """

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks with the epoch (from 0) that each belongs to.

        Fewer only where there is nothing more: an empty list means that the data has ended.

        Raises:
            DataError: naming file and line, if a row cannot be read and bad rows are not to be skipped.
        """

    def state(self) -> Mapping[str, Any]:
        """The position after the tasks taken so far, as JSON-like data; it goes into checkpoints."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next tasks are those that an uninterrupted source would have given.

        Raises:
            DataError: if the state belongs to other data.
        """

    def metrics(self) -> Mapping[str, float]:
        """Counters since the start, such as ``skipped_rows``; reported as ``data/<name>``."""


KIND = Kind(
    plural="data_sources",
    singular="data source",
    summary="yields the tasks to train on",
    table="[data]",
    protocol=DataSource,
    members=("take", "state", "restore", "metrics"),
    awaited={"take": False, "state": False, "restore": False, "metrics": False},
)
