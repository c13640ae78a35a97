"""The folder of a run: created once, never shared, with what it takes to repeat the run."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.config.load import dump_config
from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.config.load import LoadedConfig


CONFIG = "config.toml"
PLUGINS = "plugins.json"


def create_run_dir(loaded: LoadedConfig, *, below: str = "") -> Path:
    """Create ``run.dir/below/run.id``; without an id it is name, time and four random digits.

    Raises:
        CheckpointError: if it exists, or cannot be created.
    """
    run = loaded.config.run
    identity = run.id or f"{run.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"
    path = Path(run.dir).expanduser().resolve() / below / identity
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise CheckpointError(
            f"the run folder {path} exists already", remedy="Set another run.id, or remove the folder."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot create the run folder {path}: {error.strerror}", remedy="Set run.dir to a writable folder."
        ) from error
    return path


def write_records(path: Path, loaded: LoadedConfig, lock: Sequence[dict[str, Any]]) -> Path:
    """Write the resolved ``config.toml`` and ``plugins.json``; returns the path of the former.

    The resolved config names the folder that its relative paths start from, so it can be run again as it is.

    Raises:
        CheckpointError: if the disk is full or not writable.
    """
    run = loaded.config.run.model_copy(update={"base_dir": str(loaded.base_dir), "dir": str(path.parent), "id": None})
    config_file = path / CONFIG
    try:
        _replace(config_file, dump_config(loaded.config.model_copy(update={"run": run})))
        _replace(path / PLUGINS, json.dumps(list(lock), indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {path}: {error.strerror}", remedy="Free space on that disk, or set run.dir to another."
        ) from error
    return config_file


@contextmanager
def records_replaced(
    path: Path, loaded: LoadedConfig, lock: Sequence[dict[str, Any]]
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Write the records of a run that goes on; those before come back at the end, unless the second value was called.

    A change that the run cannot start with must not stay behind.

    Raises:
        CheckpointError: if the disk is full or not writable.
    """
    files = [path / name for name in (CONFIG, PLUGINS) if (path / name).is_file()]
    before = [(file, file.read_text("utf-8"), file.stat().st_mtime_ns) for file in files]
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield write_records(path, loaded, lock), keep
    finally:
        if not kept:
            for file, text, modified in before:
                _replace(file, text)
                os.utime(file, ns=(modified, modified))  # by which the latest run is found


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a resumed run writes over the file that it would be resumed with."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.replace(path)
