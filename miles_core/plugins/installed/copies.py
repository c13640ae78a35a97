"""Which of several installed copies of one distribution counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import miles_core
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.installed.problem import Problem

if TYPE_CHECKING:
    from miles_core.plugins.installed.discovery import PluginDistribution


def choose(copies: list[PluginDistribution], problems: list[Problem]) -> PluginDistribution:
    """The first on the path that offers plugins; the others are reported where they differ."""
    offering = [copy for copy in copies if copy.entries]
    first = offering[0]
    source = Path(first.location).resolve()
    # An editable install may meet the metadata of an earlier build in its own source folder: it is the newer one.
    installs = [copy for copy in offering if copy.editable and copy.editable in (source, *source.parents)]
    together = installs or [copy for copy in offering if copy.location == first.location]
    winner = together[0] if len(together) == 1 else max(together, key=_version_key)
    problems.extend(_shadowed(winner, copies))
    return winner


def running(copies: list[PluginDistribution], problems: list[Problem]) -> list[PluginDistribution]:
    """The copies of miles-hub that describe the code that runs; another that takes its name must not replace it."""
    package = Path(miles_core.__file__).resolve().parent
    found = []
    for copy in copies:
        beside = Path(copy.location, package.name).resolve()
        if beside == package or (copy.editable and package.is_relative_to(copy.editable)):
            found.append(copy)
        elif copy.entries:
            text = (
                f"{OWN} {copy.version} in {copy.location} is not the one that runs, which is in {package.parent}; "
                "its plugins are ignored"
            )
            problems.append(Problem(text, "Uninstall it, or remove its folder from the path.", OWN))
    return found


def _version_key(copy: PluginDistribution) -> tuple[bool, object]:
    from packaging.version import InvalidVersion, Version

    try:
        return (True, Version(copy.version))
    except InvalidVersion:
        return (False, copy.version)


def _shadowed(winner: PluginDistribution, copies: list[PluginDistribution]) -> list[Problem]:
    return [
        Problem(
            f"{winner.name} is installed more than once: using {winner.version} in {winner.location}, ignoring "
            f"{copy.version} in {copy.location}{'' if copy.entries else ' (it offers no plugins)'}",
            "Remove the stale *.dist-info or *.egg-info folder."
            if copy.location == winner.location
            else "Uninstall the stale one.",
            winner.name,
        )
        for copy in copies
        if (copy.version, copy.entries) != (winner.version, winner.entries)
    ]
