"""A tracker that writes when each step ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from miles_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import PluginContext

FILE = "step-ends.txt"


class StepClock:
    """Appends the time of ``perf_counter`` to ``step-ends.txt`` in the run's folder, one line a step."""

    def __init__(self, config: object, context: PluginContext) -> None:
        del config
        if context.run_dir is None:
            raise PluginError("tracker StepClock needs a run directory; this process has none")
        self._path = context.run_dir / FILE

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.perf_counter()}\n")

    def close(self) -> None:
        """Nothing is open between steps."""
