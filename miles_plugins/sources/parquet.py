"""Tasks from Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_plugins.sources.file_source import FileSource
from miles_plugins.sources.files import find_files
from miles_plugins.sources.options import FileConfig
from miles_plugins.sources.parquet_blocks import ParquetFile

if TYPE_CHECKING:
    from miles_core.api import PluginContext
    from miles_plugins.sources.blocks import BlockFile


class ParquetConfig(FileConfig):
    """Options of ``[data] use = "parquet"``."""


class Parquet(FileSource):
    """One task per row; of the columns only those that ``columns`` names are read.

    Text in ``messages``, ``images``, ``tools`` and ``metadata`` is read as JSON. A missing id is a hash of file name
    and row. Needs pyarrow: ``pip install 'miles-hub[data]'``.
    """

    Config = ParquetConfig
    columnar = True

    @classmethod
    def open(cls, config: ParquetConfig, context: PluginContext) -> list[BlockFile]:
        """The files, by their metadata."""
        columns = config.columns.names if config.columns else None
        return [ParquetFile(file, columns) for file in find_files(config.path, context.service("base_dir"))]
