"""``miles plugins lock``: which builds of which plugins there are, for comparing environments."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path

from miles_core.errors import PluginError
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy
from miles_core.plugins.lock import PluginLock, lock_of_again, lock_of_all


def lock(*, config: Path | None = None, check: Path | None = None) -> int:
    """Print or compare the plugin lock; returns the exit code.

    Parameters
    ----------
    config
        A config file: only the plugins that it uses, as its run would lock them.
    check
        An earlier lock, or the plugins.json of a run: say what is different here, instead of printing.
    """
    before = None if check is None else _read(check)
    here = _lock_here(before) if config is None else _lock_of_config(config)
    if before is None:
        sys.stdout.write(json_module.dumps(here.to_json(), indent=2) + "\n")
        return 0
    lines = before.differences(here)
    sys.stdout.write("".join(f"{line}\n" for line in lines) or f"the same plugins as in {check}\n")
    return 1 if lines else 0


def _lock_here(before: PluginLock | None) -> PluginLock:
    hub = Hub.discover(PluginPolicy.of().lenient())
    return lock_of_all(hub) if before is None else lock_of_again(hub, before)


def _lock_of_config(config: Path) -> PluginLock:
    from miles_core.app.checks import lock_of_run
    from miles_core.app.wiring import wire
    from miles_core.config.load import load_config

    return lock_of_run(wire(load_config(config), Path()))


def _read(file: Path) -> PluginLock:
    try:
        return PluginLock.from_json(json_module.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise PluginError(
            f"{file} cannot be read as a plugin lock: {error}", remedy="Write one with `miles plugins lock`."
        ) from None
