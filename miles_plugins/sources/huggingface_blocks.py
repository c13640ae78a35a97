"""Folders of the library ``datasets``: memory-mapped, so a block is only a range of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import DataError
from miles_plugins.sources.optional import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BLOCK_ROWS = 4096


class HuggingFaceFolder:
    """A folder that ``save_to_disk`` wrote, or that ``load_dataset`` reads without a network."""

    def __init__(self, path: Path, split: str, columns: Sequence[str] | None) -> None:
        self.name = path.name
        self.folder = path
        self._dataset = _load(path, split)
        self.size = len(self._dataset)
        self.block_bytes = [0] * -(-self.size // BLOCK_ROWS)
        if not self.size:
            raise DataError(
                f"{path} holds no task: its split {split!r} has no row", remedy="Set data.split to another."
            )
        if columns is not None and set(columns) <= set(self._dataset.column_names):
            self._dataset = self._dataset.select_columns(list(columns))

    def load(self, block: int) -> DatasetBlock:
        """A range of rows; they are read when they are taken."""
        return DatasetBlock(self._dataset, range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self.size)))

    def where(self, key: int) -> str:
        """Folder and number of a row, from 1."""
        return f"{self.folder}: row {key + 1}"


class DatasetBlock:
    """A range of rows of a data set."""

    def __init__(self, dataset: Any, rows: range) -> None:
        self._dataset = dataset
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Mapping[str, Any]:
        """One row."""
        row: dict[str, Any] = self._dataset[self._rows[index]]
        return row

    def key(self, index: int) -> int:
        """The row's number, from 0."""
        return self._rows[index]


def _load(path: Path, split: str) -> Any:
    if not path.is_dir():
        raise DataError(f"there is no folder {path}", remedy="Correct data.path; it is relative to the config file.")
    datasets = require("datasets", "huggingface")
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    try:
        loaded = datasets.load_from_disk(str(path)) if saved else _load_files(datasets, path)
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as a data set: {type(error).__name__}: {error}",
            remedy="Write it with save_to_disk, or name its files with another source.",
        ) from error
    if not isinstance(loaded, dict):
        return loaded.with_format(None)
    if split not in loaded:
        raise DataError(f"{path} has no split {split!r}; splits: {', '.join(loaded)}", remedy="Correct data.split.")
    return loaded[split].with_format(None)


def _load_files(datasets: Any, path: Path) -> Any:
    offline = datasets.DownloadConfig(local_files_only=True)
    return datasets.load_dataset(str(path), download_config=offline)
