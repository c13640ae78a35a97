"""Writing checkpoints: a folder ``step-N`` appears whole or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FORMAT = 1
MANIFEST = "state/manifest.json"

_MARGIN = 16 << 20
_LOG = logging.getLogger(__name__)


def write_checkpoint(
    path: Path,
    write_model: Callable[[Path], None],
    files: Mapping[str, bytes],
    *,
    nbytes: int = 0,
    keep: int = 0,
) -> None:
    """Write the new folder ``path``, named ``step-N``; then of its siblings only the newest ``keep`` and step-0 stay.

    ``write_model`` fills a folder beside it, ``files`` (by relative path) follow, and last a manifest of all sizes.
    Everything is synced before the folder gets its name, so a full disk, a kill or a power cut never leaves half a
    checkpoint and never harms another one. ``nbytes`` is what ``write_model`` is expected to write; 0 skips the check
    of free space. ``keep`` 0 keeps all.

    Raises:
        CheckpointError: if ``path`` exists, the disk has too little room, or a file cannot be written; what was
            written is removed.
    """
    if path.exists():
        raise CheckpointError(f"{path} exists already", remedy="Give the run another id, or remove the folder.")
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path.parent)
        if nbytes:
            _check_space(path, nbytes + sum(map(len, files.values())))
        partial.mkdir()
        write_model(partial)
        _write_files(partial, files)
        _sync_tree(partial)
        partial.rename(path)
        sync(path.parent)  # without it the name may be lost although the files are safe
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            raise CheckpointError(f"cannot save {path}: {error}", remedy=_remedy(error, path)) from error
        raise
    _retain(path.parent, keep)


def steps_in(folder: Path) -> dict[int, Path]:
    """The folders ``step-N`` in ``folder`` by N, ascending; empty if there is no such folder."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = re.fullmatch(r"step-(\d+)", path.name)
        if match is not None and path.is_dir():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def sync(path: Path) -> None:
    """Return when the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_files(partial: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_bytes(content)
    sizes = {file.relative_to(partial).as_posix(): file.stat().st_size for file in _files(partial)}
    manifest = partial / MANIFEST
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(json.dumps({"format": FORMAT, "files": sizes}, indent=1) + "\n", "utf-8")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sync_tree(folder: Path) -> None:
    """Files before the folders that name them, inner folders before outer ones."""
    for file in _files(folder):
        sync(file)
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        sync(inner)
    sync(folder)


def _check_space(path: Path, nbytes: int) -> None:
    needed = nbytes + nbytes // 50 + _MARGIN
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise CheckpointError(
            f"cannot save {path}: it needs about {_mib(needed)} and the disk has {_mib(free)} left",
            remedy=f"Free space on the disk of {path.parent}, lower checkpoint.keep, or set run.dir to another disk.",
        )


def _retain(folder: Path, keep: int) -> None:
    """A folder loses its good name first, so that a killed deletion leaves no half checkpoint."""
    steps = [step for step in steps_in(folder) if step > 0]
    for step in steps[:-keep] if keep else ():
        removed = folder / f".step-{step}.removed"
        try:
            (folder / f"step-{step}").rename(removed)
            sync(folder)
            shutil.rmtree(removed)
        except OSError as error:
            _LOG.warning("cannot delete the old checkpoint %s: %s", removed, error)


def _remove_leftovers(folder: Path) -> None:
    """What killed saves and deletions left."""
    for pattern in (".step-*.partial", ".step-*.removed"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"


def _remedy(error: Exception, path: Path) -> str:
    text = str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text
    if full:
        return f"Free space on the disk of {path.parent}, or set run.dir to another one; earlier checkpoints are whole."
    return f"Check that {path.parent} is a writable folder; earlier checkpoints are whole."
