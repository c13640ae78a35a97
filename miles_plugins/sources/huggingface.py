"""Tasks from folders of the library ``datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from miles_plugins.sources.file_source import FileSource
from miles_plugins.sources.huggingface_blocks import HuggingFaceFolder
from miles_plugins.sources.options import RowsConfig

if TYPE_CHECKING:
    from miles_core.api import PluginContext
    from miles_plugins.sources.blocks import BlockFile


class HuggingFaceConfig(RowsConfig):
    """Options of ``[data] use = "huggingface"``."""

    path: str = Field(min_length=1, description="the folder; relative to the config file; nothing is downloaded")
    split: str = Field("train", description="which split, where the folder has several")
    shuffle: bool = Field(True, description="shuffle each epoch, by (seed, epoch)")


class HuggingFace(FileSource):
    """One task per row of a folder that ``datasets`` wrote with ``save_to_disk`` or reads offline, memory-mapped.

    Text in ``messages``, ``images``, ``tools`` and ``metadata`` is read as JSON. A missing id is a hash of folder name
    and row. Needs datasets: ``pip install 'miles-hub[data]'``.
    """

    Config = HuggingFaceConfig
    columnar = True

    @classmethod
    def open(cls, config: HuggingFaceConfig, context: PluginContext) -> list[BlockFile]:
        """The folder as the one file of the source."""
        path = context.service("base_dir") / Path(config.path).expanduser()
        columns = config.columns.names if config.columns else None
        return [HuggingFaceFolder(path, config.split, columns)]
