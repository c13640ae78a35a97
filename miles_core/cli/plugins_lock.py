"""``miles plugins lock``: which builds of which plugins there are, for comparing environments."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.errors import PluginError
from miles_core.plugins.hub import Hub
from miles_core.plugins.lock import PluginLock, lock_of_again, lock_of_all
from miles_core.plugins.policy import PluginPolicy

if TYPE_CHECKING:
    from miles_core.config.load import LoadedConfig


def lock(*, config: Path | None = None, check: Path | None = None) -> int:
    """Print or compare the plugin lock; returns the exit code.

    Parameters
    ----------
    config
        A config file: only the plugins that it uses, as its run would lock them.
    check
        An earlier lock, or the plugins.json of a run: say what is different here, instead of printing.
    """
    loaded = None if config is None else _load(config)
    if check is None:
        here = lock_of_all(Hub.discover(PluginPolicy.of().lenient())) if loaded is None else _lock_of_config(loaded)
        sys.stdout.write(json_module.dumps(here.to_json(), indent=2) + "\n")
        return 0
    before = _read(check)
    if loaded is None:
        here = lock_of_again(Hub.discover(PluginPolicy.of().lenient()), before)
    else:
        here = _lock_of_config(loaded)
    lines = before.differences(here)
    sys.stdout.write("".join(f"{line}\n" for line in lines) or f"the same plugins as in {check}\n")
    return 1 if lines else 0


def _load(config: Path) -> LoadedConfig:
    from miles_core.config.load import load_config

    return load_config(config)


def _lock_of_config(loaded: LoadedConfig) -> PluginLock:
    from miles_core.app.checks import lock_of_run
    from miles_core.app.wiring import wire

    return lock_of_run(wire(loaded, Path()))


def _read(file: Path) -> PluginLock:
    try:
        return PluginLock.from_json(json_module.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise PluginError(
            f"{file} cannot be read as a plugin lock: {error}", remedy="Write one with `miles plugins lock`."
        ) from None
