"""The driver's look at buckets that lie in files which engines will read by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import WeightSyncError
from miles_core.weights.bucket_file import bucket_checksums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.weights.ports import Staged

Marks: TypeAlias = tuple[tuple[int, int, int], ...]

INDEX = "model.safetensors.index.json"
_REMEDY = "Set [weights] dir to a folder that trainer, driver and engines share, and where no one else writes."


def check_files(staged: Sequence[Staged]) -> tuple[Path, Marks]:
    """Compare each file with its checksum, and list all of them in an index, so that a loader misses none.

    Returns their folder and what :func:`check_unchanged` compares.

    Raises:
        WeightSyncError: naming the file that cannot be read or holds something else.
    """
    for one in staged:
        path = _path(one)
        try:
            found = bucket_checksums(path, one.bucket)
        except OSError as error:
            raise WeightSyncError(f"bucket {one.bucket.index} cannot be read: {error}", remedy=_REMEDY) from error
        for placement, wrote, read in zip(one.bucket.placements, one.checksums, found, strict=True):
            if wrote != read:
                raise WeightSyncError(
                    f"{path} is not what the trainer wrote: {placement.label}: expected xxh3-128 {wrote}, got {read}",
                    remedy=_REMEDY,
                )
    folder = _path(staged[0]).parent
    _write_index(folder, staged)
    return folder, _marks(staged)


def check_unchanged(staged: Sequence[Staged], marks: Marks) -> None:
    """Make sure that the files are those of :func:`check_files`.

    Raises:
        WeightSyncError: if one is gone or was written to.
    """
    if (found := _marks(staged)) != marks:
        changed = [_path(one) for one, old, new in zip(staged, marks, found, strict=True) if old != new]
        raise WeightSyncError(f"{changed[0]} changed while engines read it", remedy=_REMEDY)


def _path(staged: Staged) -> Path:
    return Path(str(staged.delivery["file"]))


def _marks(staged: Sequence[Staged]) -> Marks:
    try:
        stats = [_path(one).stat() for one in staged]
    except OSError as error:
        raise WeightSyncError(f"a bucket vanished while engines read it: {error}", remedy=_REMEDY) from error
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _write_index(folder: Path, staged: Sequence[Staged]) -> None:
    weight_map = {box.label: _path(one).name for one in staged for box in one.bucket.placements}
    total = sum(one.bucket.nbytes for one in staged)
    try:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}), "utf-8")
    except OSError as error:
        raise WeightSyncError(f"the index of the buckets cannot be written: {error}", remedy=_REMEDY) from error
