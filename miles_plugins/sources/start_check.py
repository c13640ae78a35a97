"""What is looked at before a run starts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.api import DataError
from miles_plugins.sources.bad_rows import row_data_error
from miles_plugins.sources.order import WINDOW_BLOCKS
from miles_plugins.sources.row_error import RowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_plugins.sources.blocks import BlockFile, BlockSet, LoadedBlock
    from miles_plugins.sources.task_rows import TaskRows

CHECKED_ROWS = 10_000
"""Rows of the first blocks that are checked; so small data is checked whole."""


def check_first_rows(blocks: BlockSet, rows: TaskRows) -> None:
    """Find a wrong column, and any bad row of small data, before processes start.

    Raises:
        DataError: naming file and line.
    """
    loaded = map(blocks.load, range(min(WINDOW_BLOCKS, len(blocks))))
    places = ((block, index) for block in loaded for index in range(len(block)))
    for block, index in islice(places, CHECKED_ROWS):
        try:
            block.task(rows, index)
        except RowError as error:
            raise row_data_error(error, block.where(index)) from None


def require_tasks(blocks: BlockSet, rows: TaskRows) -> None:
    """Where bad rows are skipped, a file that has no others would be left out in silence.

    Raises:
        DataError: naming such a file.
    """
    for number, file in enumerate(blocks.files):
        if not any(_holds_a_task(block, rows) for block in map(blocks.load, blocks.of_file(number))):
            raise no_task([file])


def no_task(files: Sequence[BlockFile]) -> DataError:
    """The error of files of which every row is bad."""
    names = ", ".join(str(Path(file.folder, Path(file.name).name)) for file in files[:3])
    return DataError(f"{names}: not one row is a task", remedy="Run `miles data check` on it; it says why.")


def _holds_a_task(block: LoadedBlock, rows: TaskRows) -> bool:
    for index in range(len(block)):
        try:
            block.task(rows, index)
        except RowError:
            continue
        return True
    return False
