"""Metrics as JSON Lines in the run's folder."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from miles_plugins.trackers.run_folder import run_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_core.api import PluginContext


class Jsonl:
    """Appends one JSON object per step to ``metrics.jsonl``, flushed at once; values that are not finite are null.

    A resumed run first takes out what will come again: later steps, and a last line that was cut off.
    """

    def __init__(self, config: object, context: PluginContext) -> None:
        del config
        path = run_folder(context, "jsonl") / "metrics.jsonl"
        resume_step: int | None = context.services.get("resume_step")
        if resume_step is not None and path.exists():
            _cut_back(path, resume_step)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step."""
        row = {"step": step, **{key: value if math.isfinite(value) else None for key, value in metrics.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cut_back(path: Path, last: int) -> None:
    """Keep whole lines of steps up to ``last``; the file is replaced at once, so a kill leaves the old or the new."""
    kept = path.with_name(f"{path.name}.tmp")
    with path.open("rb") as old, kept.open("wb") as new:
        new.writelines(line for line in old if line.endswith(b"\n") and _step(line, last + 1) <= last)
    kept.replace(path)


def _step(line: bytes, otherwise: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return otherwise
