"""Sub-commands that plugins add: looked for only where somebody asks for help, or for a command that we do not have."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from cyclopts import App

from miles_core.errors import MilesError
from miles_core.lib.error_text import error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from miles_core.plugins.lifecycle.implementations import Implementation

HOOK = "miles_add_commands"


@contextmanager
def with_plugin_commands(app: App, tokens: Sequence[str]) -> Iterator[None]:
    """``app`` with the commands of plugins, as long as the context is open and where ``tokens`` may need them."""
    added = _add(app) if _needs_plugins(app, tokens) else []
    try:
        yield
    finally:
        for name in added:
            del app[name]


def _needs_plugins(app: App, tokens: Sequence[str]) -> bool:
    if not tokens or tokens[0] in app.help_flags:
        return True
    return not tokens[0].startswith("-") and tokens[0] not in app


def _add(app: App) -> list[str]:
    added: list[str] = []
    with _warnings_on_stderr(), redirect_stdout(sys.stderr):
        for implementation in _implementations():
            for name, command in _commands(implementation).items():
                if name in app:
                    _warn(f"{implementation} adds the command {name!r}, which there is already; it is left out")
                else:
                    app.command(command, name=name)
                    added.append(name)
    return added


def _implementations() -> Sequence[Implementation]:
    from miles_core.plugins.hub import Hub

    try:
        return Hub.discover().hooks().of(HOOK)
    except MilesError as error:  # help must come whatever is wrong
        _warn(error.message)
        return []


def _commands(implementation: Implementation) -> dict[str, App]:
    """What a plugin adds to an app of its own, so that it can neither replace nor change what is ours."""
    own = App(name="miles")
    try:
        implementation.bound({"app": own})()
        return {name: own[name] for name in own if not name.startswith("-")}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - nobody asked for it
        _warn(f"{implementation} raised {error_text(error)}")
        return {}


def _warn(text: str) -> None:
    logging.getLogger("miles.plugins").warning("%s", text)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logger = logging.getLogger("miles")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
