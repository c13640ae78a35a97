"""Every process of a run finds its plugins by itself; here it makes sure that they are those of the driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from miles_core.app.run_dir import PLUGINS
from miles_core.errors import PluginError, PluginNotFound
from miles_core.plugins.lock import PluginLock, lock_of
from miles_core.plugins.reference import HOOKS

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.plugins.hub import Hub

REMEDY = (
    "Start every process with the same Python environment and PYTHONPATH, and change no package while a run goes on; "
    "`miles plugins lock` shows what is installed."
)


def require_same_plugins(hub: Hub, config_file: Path, role: str) -> None:
    """Compare with the lock that the driver wrote beside the config file; without one there is nothing to compare.

    Raises:
        PluginError: naming every plugin that this process finds otherwise, and both sides.
    """
    file = config_file.with_name(PLUGINS)
    if not file.is_file():
        return
    driver = PluginLock.from_json(json.loads(file.read_text("utf-8")))
    try:
        here = lock_of(hub, [(row.kind, row.use) for row in driver.rows if row.kind != HOOKS])
    except PluginNotFound as error:
        raise PluginError(f"the {role} process lacks a plugin of the driver: {error.message}", remedy=REMEDY) from error
    if lines := driver.differences(here):
        listed = "".join(f"\n  {line}" for line in lines)
        raise PluginError(
            f"the {role} process finds other plugins than the driver (driver -> {role}):{listed}", remedy=REMEDY
        )
