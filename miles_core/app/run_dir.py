"""The folder of a run: created once, never shared, with what it takes to repeat the run."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.config.load import dump_config
from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.config.load import LoadedConfig


def create_run_dir(loaded: LoadedConfig) -> Path:
    """Create ``run.dir/run.id``; without an id it is name, time and four random digits.

    Raises:
        CheckpointError: if it exists, or cannot be created.
    """
    run = loaded.config.run
    identity = run.id or f"{run.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"
    path = Path(run.dir).expanduser().resolve() / identity
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
    config_file = path / "config.toml"
    try:
        _replace(config_file, dump_config(loaded.config.model_copy(update={"run": run})))
        _replace(path / "plugins.json", json.dumps(list(lock), indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {path}: {error.strerror}", remedy="Free space on that disk, or set run.dir to another."
        ) from error
    return config_file


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a resumed run writes over the file that it would be resumed with."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.replace(path)
