"""All checks together, those that import packages at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from miles_core.app.doctor import packages
from miles_core.app.doctor.finding import Finding
from miles_core.app.doctor.machine import machine
from miles_core.app.doctor.mooncake import mooncake
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 4
"""Imports at once: they wait for the disk half of the time."""


def examine(hub: Hub | None = None) -> list[Finding]:
    """Every check in the order of the table; takes some seconds and downloads nothing."""
    plugins = Hub.discover(PluginPolicy.of().lenient()) if hub is None else hub
    checks: list[Callable[[], list[Finding]]] = [
        packages.python,
        packages.torch,
        packages.transformers,
        packages.sglang,
        *(partial(packages.optional, package, plugins) for package in packages.OPTIONAL),
        partial(mooncake, plugins),
        machine,
        partial(packages.plugins, plugins),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(_guarded, check) for check in checks]
        return [finding for future in futures for finding in future.result()]


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that itself fails on an odd machine is a row like any other."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the other rows are worth having
        name = getattr(getattr(check, "func", check), "__name__", "check")
        return [Finding(name, "problem", f"the check failed: {type(error).__name__}: {error}", "Report this.")]
