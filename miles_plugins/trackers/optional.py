"""Packages that only some trackers need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from miles_core.api import PluginError


def require(module: str, tracker: str) -> Any:
    """The module, imported when a tracker is made and not before.

    Raises:
        PluginError: with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise PluginError(
            f"tracker {tracker} needs the Python package {module.partition('.')[0]!r}: {error}",
            remedy="Run `pip install 'miles-hub[trackers]'`, or take the tracker out of the config.",
        ) from error
