"""Libraries that only some sources need, imported when they do."""

from __future__ import annotations

import importlib
from typing import Any

from miles_core.api import DataError


def require(module: str, use: str) -> Any:
    """The module, untyped.

    Raises:
        DataError: if it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f'use = "{use}" needs the package {module.partition(".")[0]}, which cannot be imported: {error}',
            remedy="Run `pip install 'miles-hub[data]'`.",
        ) from error
