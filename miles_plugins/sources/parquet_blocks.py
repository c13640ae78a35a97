"""Parquet: a block is a row group."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from miles_core.api import DataError
from miles_plugins.sources.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_plugins.sources.files import DataFile

_MAGIC = b"PAR1"


class ParquetFile:
    """A file of row groups; of its columns only ``columns`` are read (all if ``None``)."""

    def __init__(self, file: DataFile, columns: Sequence[str] | None) -> None:
        self.name = file.name
        self.folder = file.path.parent
        self.size = file.path.stat().st_size
        self._path = file.path
        self._parquet = require("pyarrow.parquet", "parquet")
        metadata = self._metadata()
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self.block_bytes: list[int] = [group.total_byte_size for group in groups]
        self._starts = [0, *accumulate(group.num_rows for group in groups)]
        if not self._starts[-1]:
            raise DataError(f"{self._path} holds no task: it has no row", remedy="Write one row per task.")
        # An absent one is each row's error, which names the columns that exist.
        present = {path.partition(".")[0] for path in _leaf_paths(metadata)}
        self._columns = None if columns is None or not present.issuperset(columns) else list(columns)

    def load(self, block: int) -> ArrowBlock:
        """Read a row group."""
        with self._parquet.ParquetFile(self._path, memory_map=True) as file:
            table = file.read_row_group(block, columns=self._columns)
        return ArrowBlock(table, self._starts[block])

    def where(self, key: int) -> str:
        """File and number of a row, from 1."""
        group = bisect_right(self._starts, key) - 1
        return f"{self._path}: row {key + 1} (row group {group})"

    def _metadata(self) -> Any:
        with self._path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise DataError(
                    f"{self._path} is no Parquet file: it does not begin with PAR1",
                    remedy='Set use = "jsonl" or use = "csv" for text.',
                )
        try:
            return self._parquet.read_metadata(self._path)
        except Exception as error:
            raise DataError(
                f"{self._path} cannot be read as Parquet: {error}", remedy="Write it anew; it may be cut off."
            ) from error


class ArrowBlock:
    """Rows of an Arrow table; each becomes Python values when it is taken."""

    def __init__(self, table: Any, start: int) -> None:
        self._columns = [(name, table.column(place)) for place, name in enumerate(table.column_names)]
        self._rows = table.num_rows
        self._start = start

    def __len__(self) -> int:
        return int(self._rows)

    def row(self, index: int) -> Mapping[str, Any]:
        """One row."""
        return {name: column[index].as_py() for name, column in self._columns}

    def key(self, index: int) -> int:
        """The row's number in the file, from 0."""
        return self._start + index


def _leaf_paths(metadata: Any) -> list[str]:
    return [metadata.schema.column(number).path for number in range(len(metadata.schema))]
