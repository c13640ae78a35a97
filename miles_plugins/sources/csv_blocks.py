"""CSV: one scan notes where rows begin, because a quoted cell may hold line breaks."""

from __future__ import annotations

import csv
import io
import sys
import time
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from miles_core.api import DataError
from miles_plugins.sources.row_error import RowError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from miles_plugins.sources.files import DataFile

BLOCK_ROWS = 4096
BLOCK_BYTES = 1 << 20
LOG_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a block begins: byte offset, rows before it, lines before it."""

    offset: int
    rows: int
    lines: int


class CsvFile:
    """A file with a header; a block is 4096 rows, or fewer that fill 1 MiB."""

    def __init__(self, file: DataFile, logger: logging.Logger) -> None:
        self.name = file.name
        self.folder = file.path.parent
        self.size = file.path.stat().st_size
        self._path = file.path
        self._header, self._marks = _scan(file, self.size, logger)
        self.block_bytes = [end.offset - start.offset for start, end in pairwise(self._marks)]

    def load(self, block: int) -> CsvBlock:
        """Read some rows."""
        start, end = self._marks[block : block + 2]
        with self._path.open("rb") as file:
            file.seek(start.offset)
            data = file.read(end.offset - start.offset)
        return CsvBlock(list(_records(io.BytesIO(data), start.lines)), self._header, start.rows)

    def where(self, key: int) -> str:
        """``file:line`` of the line that a row begins in."""
        block = bisect_right(self._marks, key, hi=len(self._marks) - 1, key=lambda mark: mark.rows) - 1
        return f"{self._path}:{self.load(block).line(key - self._marks[block].rows)}"


@dataclass(frozen=True, slots=True)
class Record:
    """One row before it is checked: its cells, or what is wrong with it; ``line`` counts from 1."""

    cells: list[str]
    error: str
    line: int


class CsvBlock:
    """Some rows."""

    def __init__(self, records: list[Record], header: list[str], start: int) -> None:
        self._records = records
        self._header = header
        self._start = start

    def __len__(self) -> int:
        return len(self._records)

    def row(self, index: int) -> Mapping[str, Any]:
        """The cells by column; an empty cell is ``None``."""
        record = self._records[index]
        if record.error:
            raise RowError(f"not CSV: {record.error}", remedy='Quote cells as "...", and a quote inside as "".')
        if len(record.cells) != len(self._header):
            raise RowError(
                f"expected {len(self._header)} cells as in the header, got {len(record.cells)}",
                remedy="Quote cells that hold a comma or a line break.",
            )
        try:
            "".join(record.cells).encode()
        except UnicodeEncodeError:
            raise RowError("not UTF-8 text", remedy="Save the file as UTF-8.") from None
        return {name: cell or None for name, cell in zip(self._header, record.cells, strict=True)}

    def key(self, index: int) -> int:
        """The row's number in the file, from 0."""
        return self._start + index

    def line(self, index: int) -> int:
        """The line that a row begins in, from 1."""
        return self._records[index].line


def _scan(file: DataFile, size: int, logger: logging.Logger) -> tuple[list[str], list[Mark]]:
    """The header, and the marks of all blocks with the end of the file as the last one."""
    with file.path.open("rb") as binary:
        lines = _CountedLines(binary)
        records = _records(lines, 0)
        header = _checked_header(next(records, None), file)
        marks = [Mark(lines.offset, 0, lines.count)]
        due = time.monotonic() + LOG_SECONDS
        rows = 0
        for rows, _ in enumerate(records, 1):
            if rows - marks[-1].rows == BLOCK_ROWS or lines.offset - marks[-1].offset >= BLOCK_BYTES:
                marks.append(Mark(lines.offset, rows, lines.count))
                if time.monotonic() > due:
                    logger.info("indexing %s: %.0f %%", file.path, 100 * lines.offset / size)
                    due = time.monotonic() + LOG_SECONDS
    if not rows:
        raise DataError(
            f"{file.path} holds no task: there is no row below the header", remedy="Write one row per task."
        )
    return header, marks if marks[-1].rows == rows else [*marks, Mark(lines.offset, rows, lines.count)]


def _checked_header(record: Record | None, file: DataFile) -> list[str]:
    if record is None or record.error:
        raise DataError(
            f"{file.path}:1: the header is not CSV: {record.error if record else 'there is none'}",
            remedy="Begin the file with the names of its columns, separated by commas.",
        )
    header = record.cells
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{file.path}:1: two columns are called {twice[0]!r}", remedy="Give each its own name.")
    return header


class _CountedLines:
    """The lines of a file, with the offset and the count of those that were taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = 0
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self.offset += len(line)
            self.count += 1
            yield line.removeprefix(b"\xef\xbb\xbf") if self.count == 1 else line


def _records(lines: Iterable[bytes], before: int) -> Iterator[Record]:
    """The rows that are not blank; bytes that are no UTF-8 become surrogates, which a row is checked for later."""
    reader = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
    while True:
        line = before + reader.line_num + 1
        try:
            with _long_cells():
                cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record([], str(error), line)
        else:
            if cells:
                yield Record(cells, "", line)


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module refuses cells of more than 128 KiB, for the whole process; here for one row it does not."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
