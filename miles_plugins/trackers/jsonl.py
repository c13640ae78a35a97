"""Metrics as JSON Lines in the run's folder."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from miles_core.api import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import PluginContext


class Jsonl:
    """Appends one JSON object per step to ``metrics.jsonl``, flushed at once; values that are not finite are null."""

    def __init__(self, config: object, context: PluginContext) -> None:
        del config
        if context.run_dir is None:
            raise PluginError("tracker jsonl needs a run directory; this process has none")
        self._file = (context.run_dir / "metrics.jsonl").open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step."""
        row = {"step": step, **{key: value if math.isfinite(value) else None for key, value in metrics.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
