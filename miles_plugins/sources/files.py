"""From the option ``path`` to files."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.api import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC = {
    b"PAR1": ("Parquet", 'Set use = "parquet".'),
    b"ARROW1": ("Arrow", 'Name the folder that save_to_disk wrote, with use = "huggingface".'),
    b"\x1f\x8b": ("gzip", "Unpack it: `gunzip -k FILE`."),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "Unpack it: `unzstd FILE`."),
    b"BZh": ("bzip2", "Unpack it: `bunzip2 -k FILE`."),
    b"\xfd7zXZ": ("xz", "Unpack it: `unxz -k FILE`."),
    b"PK\x03\x04": ("a zip archive", "Unpack it, or save a spreadsheet as CSV."),
    b"\xff\xfe": ("UTF-16 text", "Save it as UTF-8."),
    b"\xfe\xff": ("UTF-16 text", "Save it as UTF-8."),
}
"""What files begin with that are not what their name says."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file; ``name`` is its path below the folder that all files of the source share."""

    path: Path
    name: str


def find_files(option: str | Sequence[str], base_dir: Path) -> list[DataFile]:
    """The files that a path, a glob or a list of them names; globs in sorted order.

    Raises:
        DataError: if one is missing, a folder, or named twice, or a glob matches nothing.
    """
    patterns = [option] if isinstance(option, str) else option
    paths = [path for pattern in patterns for path in _matches(pattern, base_dir)]
    if twice := [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]:
        raise DataError(f"data.path names {twice[0]} twice", remedy="Name each file once.")
    for path in paths:
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read: permission denied", remedy="Check its permissions.")
    shared = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    return [DataFile(path, path.absolute().relative_to(shared).as_posix()) for path in paths]


def _matches(pattern: str, base_dir: Path) -> list[Path]:
    expanded = Path(pattern).expanduser()
    path = base_dir / expanded
    if path.is_file():
        return [path]
    if path.is_dir():
        raise DataError(
            f"{path} is a folder, not a file",
            remedy=f'Write a glob such as "{pattern}/*.jsonl"; what datasets saved needs use = "huggingface".',
        )
    if not glob.has_magic(pattern):
        raise DataError(f"no data file {path}", remedy="Correct data.path; it is relative to the config file.")
    found = [base_dir / name for name in _glob(str(expanded), base_dir)]
    if files := sorted(path for path in found if path.is_file()):
        return files
    raise DataError(f"no file matches {path}", remedy="Correct data.path; globs are relative to the config file.")


def _glob(pattern: str, base_dir: Path) -> list[str]:
    # Path.glob takes no absolute patterns
    return glob.glob(pattern, root_dir=base_dir, recursive=True)  # noqa: PTH207


def check_is_text(path: Path, use: str) -> bytes:
    """Refuse what is not the text it is named as; returns the first byte that is not blank.

    Raises:
        DataError: if the file is empty, blank, packed or binary.
    """
    with path.open("rb") as file:
        head = file.read(8)
        for magic, (what, remedy) in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(f"{path} is {what}, not what `{use}` reads", remedy=remedy.replace("FILE", path.name))
        file.seek(0)
        text = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
        while not text and (more := file.read(1 << 20)):
            text = more.lstrip()
    if not text:
        raise DataError(f"{path} holds no task: it is empty", remedy="Write one row per task.")
    return text[:1]
