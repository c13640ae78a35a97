"""The trackers of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.tables import PluginTable
from miles_core.errors import PluginError
from miles_core.telemetry.tracking import Trackers

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.app.wiring import Wiring

JSONL = "miles-hub/jsonl"
"""The tracker that every run has: what reads a run folder reads its file."""


def open_trackers(wiring: Wiring, say: Callable[[str], None], resume_step: int | None) -> Trackers:
    """The config's trackers, and ``jsonl`` always; one that cannot start is left out, except for want of a package.

    Raises:
        PluginError: if a package is missing, which is a mistake in the set-up.
    """
    services = {
        "config": wiring.config.model_dump(mode="json", exclude_none=True),
        "run_id": wiring.run_dir.name,
        "resume_step": resume_step,
    }
    hub, tables = wiring.hub, list(wiring.config.trackers)
    always = hub.resolve("trackers", JSONL)
    if all(hub.resolve("trackers", table.use) != always for table in tables):
        tables.insert(0, PluginTable(use=JSONL))
    made = []
    for table in tables:
        label = hub.resolve("trackers", table.use).label
        try:
            made.append((label, wiring.build("trackers", table, **services)))
        except PluginError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            say(f"warning: the run goes on without tracker {label}: {error}")
    return Trackers(made, warn=say)
