"""What importing a plugin may not do to the process that imports it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from miles_core.lib.error_text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("miles.plugins")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def contained(plugin: object) -> Iterator[None]:
    """Import inside: prints go to stderr, warnings are logged under the plugin's name and never raised.

    The working folder, the handlers of SIGINT and SIGTERM, the root logger and the warning filters are put back.
    Threads, environment variables and ``sys.path`` are left as the plugin made them.
    """
    folder, handlers, root = _folder(), _handlers(), logging.getLogger()
    root_handlers, level = root.handlers[:], root.level
    changed: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        # The user's `-W error` is about the user's code.
        warnings.filters = [_not_error(entry) for entry in warnings.filters]
        try:
            with stdout_on_stderr():
                yield
        finally:
            if folder is not None and _folder() != folder:
                with suppress(OSError):
                    os.chdir(folder)
                changed.append("the working folder")
            if _handlers() != handlers:
                _restore(handlers)
                changed.append("the handlers of signals")
            if (root.handlers, root.level) != (root_handlers, level):
                root.handlers[:] = root_handlers
                root.setLevel(level)
                changed.append("the root logger")
    for warning in caught:
        text = shortened(f"{warning.category.__name__}: {warning.message}")
        logger.warning("%s: its import warned: %s (%s:%d)", plugin, text, warning.filename, warning.lineno)
    if changed:
        logger.warning("%s: its import changed %s, which was put back", plugin, " and ".join(changed))


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Everything that is printed inside goes to stderr, also what C code and child processes print."""
    _flush()
    with redirect_stdout(sys.stderr), ExitStack() as undo:
        with suppress(OSError):  # a daemon may have closed either
            kept = os.dup(1)
            undo.callback(os.close, kept)
            os.dup2(2, 1)
            undo.callback(os.dup2, kept, 1)
            undo.callback(_flush)
        yield


def _flush() -> None:
    """Otherwise what lies in a buffer would come out on the other side."""
    import ctypes  # here: not for `miles plugins list`

    if sys.__stdout__ is not None:
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            sys.__stdout__.flush()
    ctypes.CDLL(None).fflush(None)


def _not_error(entry: Any) -> Any:
    return ("default", *entry[1:]) if entry[0] == "error" else entry


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - os.chdir takes it back as it is
    except OSError:  # it was deleted
        return None


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in SIGNALS}


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only there a handler can be set, also by the plugin
    for number, handler in handlers.items():
        if handler is not None:  # set by other code than Python's
            signal.signal(number, handler)
