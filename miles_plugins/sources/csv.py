"""Tasks from CSV files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_plugins.sources.csv_blocks import CsvFile
from miles_plugins.sources.file_source import FileSource
from miles_plugins.sources.files import check_is_text, find_files
from miles_plugins.sources.options import FileConfig

if TYPE_CHECKING:
    from miles_core.api import PluginContext
    from miles_plugins.sources.blocks import BlockFile


class CsvConfig(FileConfig):
    """Options of ``[data] use = "csv"``."""


class Csv(FileSource):
    """One task per row below a header; an empty cell is no value.

    Cells of ``messages``, ``images``, ``tools`` and ``metadata`` hold JSON. A missing id is a hash of file
    name and row.
    """

    Config = CsvConfig
    columnar = True

    @classmethod
    def open(cls, config: CsvConfig, context: PluginContext) -> list[BlockFile]:
        """The files, each scanned once for where its rows begin."""
        files = find_files(config.path, context.service("base_dir"))
        for file in files:
            check_is_text(file.path, "csv")
        return [CsvFile(file, context.logger) for file in files]
