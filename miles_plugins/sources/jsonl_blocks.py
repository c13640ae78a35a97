"""JSON Lines: blocks of equal size, known from the file's size alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_plugins.sources.row_error import RowError, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from miles_plugins.sources.files import DataFile

BLOCK_BYTES = 1 << 20
_NEWLINE = ord("\n")
_BLANKS = np.frombuffer(b"\n\r\t ", np.uint8)


class JsonlFile:
    """A file of one JSON object per line; block ``k`` owns the lines that start in its ``BLOCK_BYTES`` bytes.

    So nothing is scanned at the start, and a line number is counted only when somebody asks for it.
    """

    def __init__(self, file: DataFile) -> None:
        self.name = file.name
        self.folder = file.path.parent
        self.size = file.path.stat().st_size
        self.block_bytes = [min(BLOCK_BYTES, self.size - start) for start in range(0, self.size, BLOCK_BYTES)]
        self._path = file.path
        self._counted = 0, 0  # newlines before an offset

    def load(self, block: int) -> JsonlBlock:
        """Read the lines that start in a block, the last one to its end."""
        start = max(block * BLOCK_BYTES - 1, 0)  # the byte before tells whether a line starts at the first one
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(block * BLOCK_BYTES + self.block_bytes[block] - start)
            first = data.find(b"\n") + 1 if block else 0
            if block and not first:
                return JsonlBlock(b"", start, 0)
            if not data.endswith(b"\n"):
                data += file.readline()
        return JsonlBlock(data, start, first)

    def where(self, key: int) -> str:
        """``file:line`` of the line at a byte offset."""
        offset, lines = self._counted if self._counted[0] <= key else (0, 0)
        with self._path.open("rb") as file:
            file.seek(offset)
            while offset < key and (data := file.read(min(BLOCK_BYTES, key - offset))):
                offset += len(data)
                lines += data.count(b"\n")
        self._counted = offset, lines
        return f"{self._path}:{lines + 1}"


class JsonlBlock:
    """The bytes of some lines and where each begins and ends; blank lines are left out."""

    def __init__(self, data: bytes, offset: int, first: int) -> None:
        self._data = memoryview(data)
        self._offset = offset
        self._starts, self._ends = _lines(data, first)

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> Mapping[str, Any]:
        """Parse one line; of keys that come twice the last one counts."""
        line = self._data[self._starts[index] : self._ends[index]]
        return parse_row(line)

    def key(self, index: int) -> int:
        """The byte offset of the line in its file."""
        return self._offset + int(self._starts[index])


def parse_row(line: memoryview) -> Mapping[str, Any]:
    """The JSON object of a line.

    Raises:
        RowError: if it is not UTF-8, no JSON, or no object.
    """
    try:
        row = json.loads(str(line, "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: {error}", remedy="Save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise RowError(
            f"not JSON: {error.msg} at column {error.colno}", remedy="Write one JSON object per line."
        ) from None
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}", remedy="Write one JSON object per line.") from None
    return as_object(row)


def as_object(row: Any) -> Mapping[str, Any]:
    """The row itself.

    Raises:
        RowError: if it is no JSON object.
    """
    if not isinstance(row, dict):
        raise RowError(f"expected a JSON object, got {kind_of(row)}", remedy="Write one JSON object per row.")
    return row


def _lines(data: bytes, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the lines from ``first`` on that are not blank."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array[first:] == _NEWLINE) + first
    if first < len(data) and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.array([first], np.int64), ends[:-1] + 1])[: len(ends)]
    maybe_blank = np.flatnonzero((starts == ends) | np.isin(array[np.minimum(starts, len(data) - 1)], _BLANKS))
    blank = [i for i in maybe_blank if not data[starts[i] : ends[i]].strip()]
    return np.delete(starts, blank), np.delete(ends, blank)
