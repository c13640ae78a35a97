"""What a plugin raised or returned, as a short text that is always there."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from miles_core.errors import MilesError

LONGEST = 500
_STANDARD = sysconfig.get_path("stdlib")

UNREADABLE = "A package's metadata cannot be read; `miles plugins doctor --no-import` says which to reinstall."
"""The remedy where :func:`reads_metadata`."""


def error_text(error: BaseException) -> str:
    """``Type: message`` without a remedy; a long message is cut, and one that cannot be made is said to be so."""
    name = type(error).__name__
    try:
        text = error.message if isinstance(error, MilesError) else str(error)
    except BaseException as broken:  # noqa: BLE001 - the plugin's own `__str__`, which may do anything
        return f"{name} (its text cannot be had: {type(broken).__name__})"
    return f"{name}: {shortened(text)}" if text else name


def place_of(error: BaseException) -> str:
    """``FILE:LINE`` of the innermost code that is neither ours nor a library's; empty where there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f"{file}:{line}" for file, line in frames if not file.startswith(_STANDARD) and not _is_library(file)]
    return own[-1] if own else ""


def _is_library(file: str) -> bool:
    return not {"site-packages", "miles_core"}.isdisjoint(Path(file).parts)


def value_text(value: object, longest: int = 60) -> str:
    """The value's ``repr``, cut; its type where there is none."""
    try:
        return shortened(repr(value), longest)
    except BaseException:  # noqa: BLE001 - the plugin's own `__repr__`, which may do anything
        return f"a {type(value).__name__}"


def reads_metadata(error: BaseException) -> bool:
    """Libraries read the entry points of all packages when they are imported, and fail where one is broken."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    reads = any(Path(file).parts[-3:-1] == ("importlib", "metadata") for file in files)
    return reads and not isinstance(error, ModuleNotFoundError)  # that is a package which is not installed


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text, cut after ``longest`` characters."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
