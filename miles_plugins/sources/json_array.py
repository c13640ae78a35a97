"""One JSON array of objects: read whole, because nothing in it can be found without reading all before it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.api import DataError
from miles_plugins.sources.jsonl_blocks import as_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_plugins.sources.files import DataFile

BLOCK_ROWS = 4096


class JsonArrayFile:
    """A file that begins with ``[``; it must fit into memory."""

    def __init__(self, file: DataFile) -> None:
        self.name = file.name
        self.folder = file.path.parent
        self.size = file.path.stat().st_size
        self._path = file.path
        self._rows = _read(file)
        self.block_bytes = [0] * -(-len(self._rows) // BLOCK_ROWS)  # they are in memory already

    def load(self, block: int) -> JsonArrayBlock:
        """Some elements."""
        start = block * BLOCK_ROWS
        return JsonArrayBlock(self._rows[start : start + BLOCK_ROWS], start)

    def where(self, key: int) -> str:
        """File and number of an element, from 1."""
        return f"{self._path}: element {key + 1}"


class JsonArrayBlock:
    """Some elements of the array."""

    def __init__(self, rows: Sequence[Any], start: int) -> None:
        self._rows = rows
        self._start = start

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Mapping[str, Any]:
        """One element."""
        return as_object(self._rows[index])

    def key(self, index: int) -> int:
        """The element's number in the file, from 0."""
        return self._start + index


def _read(file: DataFile) -> list[Any]:
    try:
        rows = json.loads(file.path.read_bytes())
    except json.JSONDecodeError as error:
        raise _broken(file, f"line {error.lineno} is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise _broken(file, f"it is not JSON: {error}") from None
    if not rows:
        raise DataError(f"{file.path} holds no task: its array is empty", remedy="Write one object per task.")
    return list(rows)


def _broken(file: DataFile, what: str) -> DataError:
    return DataError(
        f"{file.path} begins with `[`, so it was read as one JSON array, but {what}",
        remedy="Correct the array, or write one JSON object per line.",
    )
