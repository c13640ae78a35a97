"""Tasks from Python: a function that makes rows or tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from miles_core.api import DataError, InspectedRow
from miles_plugins.sources.bad_rows import BadRows
from miles_plugins.sources.fingerprint import check_fingerprint
from miles_plugins.sources.options import RowsConfig
from miles_plugins.sources.python_rows import PythonRows
from miles_plugins.sources.row_error import RowError, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from miles_core.api import PluginContext, Task


class IterableConfig(RowsConfig):
    """Options of ``[data] use = "iterable"``."""

    path: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="module:attribute, which must be importable")
    options: dict[str, Any] = Field({}, description="keyword arguments of a function")
    shuffle: bool = Field(False, description="shuffle each epoch, by (seed, epoch); only what has a length")


class Iterable:
    """A function of row mappings or ``Task`` objects, called anew for each epoch, or a sequence of them.

    Rows are read as those of a JSONL file are. A run resumes by skipping what was taken, so a function must make the
    same rows again.
    """

    Config = IterableConfig

    def __init__(self, config: IterableConfig, context: PluginContext) -> None:
        self._config = config
        self._seed = context.seed
        self._rows = PythonRows(config.path, config.options, config.columns, context)
        self._bad = BadRows(config.on_bad_row, context.logger)
        config_now = config.model_dump(mode="json", exclude={"on_bad_row"})
        self._fingerprint = {**config_now, "seed": context.seed if config.shuffle else None}
        self._epoch = self._row = 0
        self._tasks_in_epoch = 0
        self._open: Iterator[tuple[int, Any]] | None = None

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks, each with its epoch; epochs follow one another."""
        taken: list[tuple[int, Task]] = []
        while len(taken) < count:
            number, row = self._next()
            self._row += 1
            try:
                taken.append((self._epoch, self._rows.task(number, row)))
            except RowError as error:
                self._bad.add(error, self._rows.where(number))
            else:
                self._tasks_in_epoch += 1
        return taken

    def state(self) -> dict[str, Any]:
        """The position; ``row`` counts the rows taken of the epoch."""
        return {
            "epoch": self._epoch,
            "row": self._row,
            "tasks_in_epoch": self._tasks_in_epoch,
            "fingerprint": self._fingerprint,
            "counters": {"skipped_rows": self._bad.skipped},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the rows before it are made and skipped.

        Raises:
            DataError: if it belongs to other data.
        """
        check_fingerprint(self._fingerprint, state.get("fingerprint"))
        self._epoch, self._row, self._tasks_in_epoch = state["epoch"], state["row"], state["tasks_in_epoch"]
        self._bad.skipped = state["counters"]["skipped_rows"]
        self._open = None

    def metrics(self) -> dict[str, float]:
        """Rows that were skipped since the start; one that is bad counts in every epoch."""
        return {"skipped_rows": float(self._bad.skipped)}

    @classmethod
    def inspect(cls, config: IterableConfig, context: PluginContext) -> Iterator[InspectedRow]:
        """Every row of one epoch in order, good or bad, for ``miles data check``."""
        python_rows = PythonRows(config.path, config.options, config.columns, context)
        for number, row in python_rows.rows():
            kinds = {str(key): kind_of(value) for key, value in row.items()} if isinstance(row, Mapping) else {}
            task, problem = None, ""
            try:
                task = python_rows.task(number, row)
            except RowError as error:
                problem = error.reason
            yield InspectedRow(partial(python_rows.where, number), kinds, task, problem)

    def _next(self) -> tuple[int, Any]:
        while True:
            if self._open is None:
                self._open = islice(self._rows.rows(self._order if self._config.shuffle else None), self._row, None)
            found = next(self._open, None)
            if found is not None:
                return found
            if not self._tasks_in_epoch:
                raise DataError(
                    f"{self._config.path}: a whole epoch holds no task", remedy="Let it yield rows or Task objects."
                )
            self._epoch, self._row, self._tasks_in_epoch, self._open = self._epoch + 1, 0, 0, None

    def _order(self, count: int) -> Sequence[int]:
        order: list[int] = np.random.default_rng([self._seed, self._epoch]).permutation(count).tolist()
        return order
