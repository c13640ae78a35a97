"""Which installed distributions offer plugins, read from their metadata without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import TYPE_CHECKING

from miles_core.config.suggest import nearest
from miles_core.kinds import KINDS
from miles_core.plugins.reference import normalise

if TYPE_CHECKING:
    from collections.abc import Sequence


HOOKS_GROUP = "miles"
"""The entry-point group of hand-written modules."""

_GROUPS = (HOOKS_GROUP, *(kind.group for kind in KINDS.values()))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an ``entry_points.txt``; ``group`` is that of a kind, or ``miles``."""

    group: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class PluginDistribution:
    """One installed copy of a distribution and the entry points that it offers to miles."""

    name: str
    version: str
    location: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Discovery:
    """The distributions that offer plugins, by name, and what is wrong with the metadata, one sentence each."""

    distributions: tuple[PluginDistribution, ...]
    problems: tuple[str, ...]


def find_distributions(path: Sequence[str] | None = None) -> Discovery:
    """Read the metadata of everything on ``path`` (default: ``sys.path``).

    Of several copies of one distribution the first on the path that has entry points counts, because it is the one
    whose modules Python imports; the others are reported where they differ.
    """
    found: dict[str, list[Distribution]] = {}
    names: set[str] = set()
    for distribution in distributions() if path is None else distributions(path=list(path)):
        offers = _may_offer_plugins(distribution)
        name = _name(distribution, exactly=offers)
        found.setdefault(name, []).append(distribution)
        if offers:
            names.add(name)
    chosen: list[PluginDistribution] = []
    problems: list[str] = []
    for name in sorted(names):
        copies = [_read(name, copy, problems) for copy in found[name]]
        offering = [copy for copy in copies if copy.entries]
        if offering:
            chosen.append(_first_on_path(offering))
            problems.extend(_shadowed(chosen[-1], copies))
    return Discovery(tuple(chosen), tuple(problems))


def _name(distribution: Distribution, *, exactly: bool) -> str:
    # importlib.metadata's own key comes from the folder's name. That is cheap, since no metadata file is parsed, but
    # wrong where a folder is not named as the standard says; so what may offer plugins is asked for its real name.
    key: str = getattr(distribution, "_normalized_name", None) or ""
    try:
        return normalise((distribution.name or key) if exactly or not key else key)
    except (OSError, ValueError, TypeError, KeyError):
        return normalise(key)


def _may_offer_plugins(distribution: Distribution) -> bool:
    try:
        return "[miles" in (distribution.read_text("entry_points.txt") or "")
    except (OSError, ValueError):
        return True  # unreadable: _read reports it


def _read(name: str, distribution: Distribution, problems: list[str]) -> PluginDistribution:
    location = str(distribution.locate_file(""))
    entries: list[Entry] = []
    try:
        for entry in distribution.entry_points:
            if entry.group in _GROUPS and entry.name:
                entries.append(Entry(entry.group, entry.name, entry.value))
            elif entry.group in _GROUPS:
                problems.append(f"{name} offers {entry.value!r} without a name in {entry.group}; name it")
            elif entry.group.startswith("miles."):
                problems.append(f"{name} offers {entry.name!r} to the unknown group {entry.group}{_hint(entry.group)}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        problems.append(f"{name} in {location}: its entry_points.txt cannot be read ({error}); reinstall {name}")
    return PluginDistribution(name, _version(distribution), location, tuple(entries))


def _hint(group: str) -> str:
    match = nearest(group, _GROUPS)
    return f"; did you mean {match}?" if match else ""


def _version(distribution: Distribution) -> str:
    try:
        return distribution.version or "unknown"
    except (OSError, ValueError, KeyError):
        return "unknown"


def _first_on_path(copies: list[PluginDistribution]) -> PluginDistribution:
    together = [copy for copy in copies if copy.location == copies[0].location]
    return together[0] if len(together) == 1 else max(together, key=_version_key)


def _version_key(copy: PluginDistribution) -> tuple[bool, object]:
    from packaging.version import InvalidVersion, Version

    try:
        return (True, Version(copy.version))
    except InvalidVersion:
        return (False, copy.version)


def _shadowed(winner: PluginDistribution, copies: list[PluginDistribution]) -> list[str]:
    return [
        f"{winner.name} is installed more than once: using {winner.version} in {winner.location}, ignoring "
        f"{copy.version} in {copy.location}{'' if copy.entries else ' (it offers no plugins)'}; uninstall the stale one"
        for copy in copies
        if (copy.version, copy.entries) != (winner.version, winner.entries)
    ]
