"""Rows that Python code makes, found by import path."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.api import DataError, Task
from miles_plugins.sources.blocks import row_id
from miles_plugins.sources.row_error import RowError, kind_of
from miles_plugins.sources.task_rows import TaskRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.api import PluginContext
    from miles_plugins.sources.columns import Columns


class PythonRows:
    """What ``module:attribute`` yields: a function's iterable, made anew each time, or a sequence.

    Raises:
        DataError: if it cannot be imported, or is neither.
    """

    def __init__(self, path: str, options: Mapping[str, Any], columns: Columns | None, context: PluginContext) -> None:
        self._path = path
        self._options = options
        self._tasks = TaskRows(columns)
        self._folder = Path(context.service("base_dir"))
        self._target = _import(path)
        if not callable(self._target) and (not _is_sequence(self._target) or options):
            raise DataError(
                f"{path} is {kind_of(self._target)}, not a function"
                + (", so it takes no options" if _is_sequence(self._target) else " and not a sequence"),
                remedy="Name a function that returns an iterable of rows; it is called for each epoch.",
            )

    def rows(self, order: Callable[[int], Sequence[int]] | None = None) -> Iterator[tuple[int, Any]]:
        """Number and row of one epoch, in ``order(length)`` or its own order.

        Raises:
            DataError: if the code fails, or its result is no iterable or, for another order, has no length.
        """
        try:
            made = self._target(**self._options) if callable(self._target) else self._target
            if _is_sequence(made):
                for number in range(len(made)) if order is None else order(len(made)):
                    yield number, made[number]
            elif order is not None:
                raise DataError(
                    f"{self._path} returned {kind_of(made)}, which has no length, so it cannot be shuffled",
                    remedy="Return a list, or set data.shuffle = false.",
                )
            elif isinstance(made, Iterable) and not isinstance(made, str | Mapping):
                yield from enumerate(made)
            else:
                raise DataError(
                    f"{self._path} must return an iterable of rows; it returned {kind_of(made)}",
                    remedy="Let it return a list, or be a generator.",
                )
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{self._path} failed: {type(error).__name__}: {error}", remedy="Repair it, or correct data.options."
            ) from error

    def task(self, number: int, row: Any) -> Task:
        """The task of a row; a ``Task`` stays as it is.

        Raises:
            RowError: if it is malformed.
        """
        if isinstance(row, Task):
            return row
        if not isinstance(row, Mapping):
            raise RowError(f"expected a mapping or a Task, got {kind_of(row)}", remedy="Yield rows or Task objects.")
        return self._tasks.task(row, folder=self._folder, default_id=row_id(self._path, number))

    def where(self, number: int) -> str:
        """Path and number of a row, from 1."""
        return f"{self._path}: row {number + 1}"


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in attribute.split("."):
            target = getattr(target, name)
    except Exception as error:
        raise DataError(
            f"data.path = {path!r} cannot be imported: {type(error).__name__}: {error}",
            remedy="Correct the path, or make the module importable: PYTHONPATH=.",
        ) from error
    return target


def _is_sequence(value: object) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)
