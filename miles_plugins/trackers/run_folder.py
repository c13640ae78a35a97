"""What trackers keep in the run's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.api import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from miles_core.api import PluginContext


def run_folder(context: PluginContext, tracker: str) -> Path:
    """The run's folder.

    Raises:
        PluginError: where this process has none.
    """
    if context.run_dir is None:
        raise PluginError(f"tracker {tracker} needs a run directory; this process has none")
    return context.run_dir


def remembered(file: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """The id in ``file`` and whether it was there; otherwise a new one, which the next start of this run will find."""
    if file.is_file() and (text := file.read_text("utf-8").strip()):
        return text, True
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made + "\n", "utf-8")
    return made, False
