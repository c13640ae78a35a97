"""Files as lists of blocks, so that one larger than memory can be read in any order."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from miles_core.api import Task
    from miles_plugins.sources.task_rows import TaskRows


class Block(Protocol):
    """Some neighbouring rows of a file, in memory but not parsed yet."""

    def __len__(self) -> int:
        """How many rows it holds."""

    def row(self, index: int) -> Mapping[str, Any]:
        """Parse one row.

        Raises:
            RowError: if it is malformed.
        """

    def key(self, index: int) -> int:
        """What identifies the row within its file: a byte offset, or a row number from 0."""


class BlockFile(Protocol):
    """One file or folder of rows; making one reads no more than it must to know its blocks."""

    name: str
    """The path below the folder that all files of the source share: in ids and in states, so data may move."""
    folder: Path
    """Where relative image paths start."""
    size: int
    """Bytes, or rows where a folder is read by a library."""
    block_bytes: list[int]
    """Memory that each block takes, about."""

    def load(self, block: int) -> Block:
        """Read one block."""

    def where(self, key: int) -> str:
        """File and line (or row) of a row, for people."""


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block and the file that it is from."""

    file: BlockFile
    block: Block

    def __len__(self) -> int:
        return len(self.block)

    def row(self, index: int) -> Mapping[str, Any]:
        """Parse one row; see :meth:`Block.row`."""
        return self.block.row(index)

    def task(self, rows: TaskRows, index: int, row: Mapping[str, Any] | None = None) -> Task:
        """The task of a row, which is parsed unless it is given.

        Raises:
            RowError: if it is malformed.
        """
        default_id = row_id(self.file.name, self.block.key(index))
        row = self.block.row(index) if row is None else row
        return rows.task(row, folder=self.file.folder, default_id=default_id)

    def where(self, index: int) -> str:
        """File and line of a row."""
        return self.file.where(self.block.key(index))


def row_id(name: str, key: int) -> str:
    """The id of a row that names none: an xxh3 hash of where it stands."""
    return xxhash.xxh3_64_hexdigest(f"{name}:{key}".encode())


class BlockSet:
    """The blocks of several files, numbered through."""

    def __init__(self, files: Sequence[BlockFile]) -> None:
        self.files = tuple(files)
        self.block_bytes = [size for file in self.files for size in file.block_bytes]
        self._starts = [0, *accumulate(len(file.block_bytes) for file in self.files)]

    def __len__(self) -> int:
        return len(self.block_bytes)

    def load(self, number: int) -> LoadedBlock:
        """Read a block by its number."""
        index = bisect_right(self._starts, number) - 1
        file = self.files[index]
        return LoadedBlock(file, file.load(number - self._starts[index]))

    def of_file(self, index: int) -> range:
        """The numbers of one file's blocks."""
        return range(self._starts[index], self._starts[index + 1])
