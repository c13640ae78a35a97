"""From a row to a task: the one place that knows what rows mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import Task
from miles_plugins.sources.columns import KEYS
from miles_plugins.sources.conversation import conversation
from miles_plugins.sources.row_error import RowError
from miles_plugins.sources.text import check_text
from miles_plugins.sources.values import (
    environment_name,
    from_json_text,
    id_text,
    image_paths,
    label_text,
    metadata_of,
    tool_schemas,
    without_nulls,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_plugins.sources.columns import Columns

_STRUCTURED = ("messages", "images", "tools", "metadata")


class TaskRows:
    """Makes tasks of rows, by a column mapping or by the keys' own names.

    ``columnar`` is for formats whose columns have one type each: there, text in ``messages``, ``images``, ``tools`` or
    ``metadata`` is read as JSON, and keys that are null are left out of messages and tools.
    """

    def __init__(self, columns: Columns | None, *, columnar: bool = False) -> None:
        self._columns = columns
        self._columnar = columnar

    def task(self, row: Mapping[str, Any], *, folder: Path, default_id: str) -> Task:
        """The task of a row; relative image paths count from ``folder``.

        Raises:
            RowError: naming key, type and value of what is wrong.
        """
        values = self._by_name(row) if self._columns is None else self._mapped(row, self._columns)
        if self._columnar:
            values = {**values, **{key: self._read_cell(key, values[key]) for key in _STRUCTURED if key in values}}
        for key, value in values.items():
            check_text(key, value)
        get = values.get
        return Task(
            id=id_text(get("id"), default_id),
            messages=conversation(get("prompt"), get("messages"), folder),
            label=label_text(get("label")),
            images=image_paths(get("images"), folder),
            tools=tool_schemas(get("tools")),
            environment=environment_name(get("environment")),
            metadata=metadata_of(get("metadata")),
        )

    def _by_name(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_prompt(row, "prompt", "messages")
        if unknown := sorted(str(key) for key in row if key not in KEYS):
            raise RowError(
                f"unknown key {unknown[0]!r}; available keys: {_names(row)}",
                remedy=f"Known keys: {', '.join(KEYS)}; the option `columns` maps others to them.",
            )
        return row

    def _mapped(self, row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
        _check_prompt(row, *filter(None, (columns.prompt, columns.messages)))
        for column in columns.names:
            if column not in row and column not in (columns.prompt, columns.messages):
                raise RowError(
                    f"there is no column {column!r}; available keys: {_names(row)}",
                    remedy="Correct the option `columns`, or write null where a row has no value.",
                )
        values = {key: row.get(column) for key, column in columns.pairs}
        if columns.gathered:
            values["metadata"] = {column: row[column] for column in columns.gathered}
        return values

    def _read_cell(self, key: str, value: Any) -> Any:
        value = from_json_text(key, value)
        return value if key == "metadata" else without_nulls(value)


def _check_prompt(row: Mapping[str, Any], *columns: str) -> None:
    if not any(column in row for column in columns):
        raise RowError(
            f"there is no {' and no '.join(f'`{column}`' for column in columns)}; available keys: {_names(row)}",
            remedy='Name the column that holds the prompt: columns = { prompt = "..." }.',
        )


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "none"
