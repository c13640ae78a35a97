"""Tasks from JSON Lines files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_plugins.sources.file_source import FileSource
from miles_plugins.sources.files import check_is_text, find_files
from miles_plugins.sources.json_array import JsonArrayFile
from miles_plugins.sources.jsonl_blocks import JsonlFile
from miles_plugins.sources.options import FileConfig

if TYPE_CHECKING:
    from miles_core.api import PluginContext
    from miles_plugins.sources.blocks import BlockFile
    from miles_plugins.sources.files import DataFile


class JsonlConfig(FileConfig):
    """Options of ``[data] use = "jsonl"``."""


class Jsonl(FileSource):
    """One task per line: ``{id, prompt | messages, label, images, tools, environment, metadata}``.

    A file that begins with ``[`` is read whole, as one JSON array of such objects. Of keys that come twice the last one
    counts. A missing id is a hash of file name and byte offset.
    """

    Config = JsonlConfig

    @classmethod
    def open(cls, config: JsonlConfig, context: PluginContext) -> list[BlockFile]:
        """The files; none is read beyond its first bytes, unless it is one JSON array."""
        return [_open(file) for file in find_files(config.path, context.service("base_dir"))]


def _open(file: DataFile) -> BlockFile:
    return JsonArrayFile(file) if check_is_text(file.path, "jsonl") == b"[" else JsonlFile(file)
