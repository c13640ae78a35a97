"""Which installed distributions offer plugins, read from their metadata without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from typing import TYPE_CHECKING

from miles_core.config.suggest import nearest
from miles_core.kinds import KINDS
from miles_core.plugins.installed.copies import choose, running
from miles_core.plugins.installed.metadata import Facts, editable_folder, read_facts
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.installed.problem import Problem
from miles_core.plugins.reference import normalise, split_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


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
    """One installed copy of a distribution and the entry points that it offers to miles.

    ``location`` is the folder that its metadata lies in, ``editable`` the source folder of an editable install.
    """

    name: str
    version: str
    location: str
    entries: tuple[Entry, ...]
    facts: Facts
    editable: Path | None


@dataclass(frozen=True, slots=True)
class Discovery:
    """The distributions that offer plugins, by name, and what is wrong with the metadata."""

    distributions: tuple[PluginDistribution, ...]
    problems: tuple[Problem, ...]
    others: Mapping[str, Distribution] = field(default_factory=dict)
    """One copy of each distribution that offers none."""

    def version_of(self, name: str) -> str | None:
        """The version of any installed distribution; ``None`` if there is none of that normalised name."""
        for distribution in self.distributions:
            if distribution.name == name:
                return distribution.version
        return read_facts(self.others[name]).version if name in self.others else None


def find_distributions(path: Sequence[str] | None = None) -> Discovery:
    """Read the metadata of everything on ``path`` (default: ``sys.path``).

    Of several copies of one distribution the first on the path that has entry points counts, because it is the one
    whose modules Python imports; the others are reported where they differ.
    """
    found: dict[str, list[tuple[Distribution, Facts | None]]] = {}
    names: set[str] = set()
    for distribution in distributions() if path is None else distributions(path=list(path)):
        facts = read_facts(distribution) if _may_offer_plugins(distribution) else None
        name = _name(distribution, facts)
        found.setdefault(name, []).append((distribution, facts))
        if facts is not None:
            names.add(name)
    chosen: list[PluginDistribution] = []
    problems: list[Problem] = []
    for name in sorted(names):
        copies = [_read(name, *copy, problems) for copy in found[name]]
        if name == OWN:
            copies = running(copies, problems)
        if any(copy.entries for copy in copies):
            chosen.append(choose(copies, problems))
    others = {name: copies[0][0] for name, copies in found.items() if name not in names}
    return Discovery(tuple(chosen), tuple(problems), others)


def _may_offer_plugins(distribution: Distribution) -> bool:
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, ValueError):
        return True  # unreadable: _read reports it
    return "[miles" in text or not all(map(_is_well_formed, text.splitlines()))


def _is_well_formed(line: str) -> bool:
    """Whether Python can parse it; if not, the libraries that read all entry points at import fail too."""
    line = line.strip()
    return not line or line.startswith("#") or "=" in line or (line.startswith("[") and line.endswith("]"))


def _name(distribution: Distribution, facts: Facts | None) -> str:
    # importlib.metadata's own key comes from the folder's name. That is cheap, since no metadata file is parsed, but
    # wrong where a folder is not named as the standard says; so what may offer plugins is asked for its real name.
    key: str = getattr(distribution, "_normalized_name", None) or ""
    if facts is None and not key:
        facts = read_facts(distribution)
    return normalise((facts.name if facts else "") or key)


def _read(name: str, distribution: Distribution, facts: Facts | None, problems: list[Problem]) -> PluginDistribution:
    location = str(distribution.locate_file(""))
    entries: dict[Entry, None] = {}
    if facts is not None and not facts.name:
        text = f"{name} in {location}: its METADATA is missing, unreadable or without a name"
        problems.append(Problem(text, f"Reinstall {name}.", name))
    try:
        for found in distribution.entry_points:
            entry = Entry(found.group, found.name, found.value)
            if problem := _problem_of(name, entry):
                problems.append(problem)
            if entry.group in _GROUPS and entry.name:
                entries[entry] = None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        text = f"{name} in {location}: its entry_points.txt cannot be read ({error})"
        problems.append(Problem(text, f"Reinstall {name}.", name))
    facts = read_facts(distribution) if facts is None else facts
    return PluginDistribution(name, facts.version, location, tuple(entries), facts, editable_folder(distribution))


def _problem_of(name: str, entry: Entry) -> Problem | None:
    """What keeps an entry from being a plugin; a target that only fails at import is none of this."""
    remedy = f"Correct it in the pyproject.toml of {name}, or tell its author."
    if entry.group not in _GROUPS:
        if not entry.group.startswith("miles."):
            return None
        match = nearest(entry.group, _GROUPS)
        hint = f"Did you mean {match}? " if match else ""
        return Problem(f"{name} offers {entry.name!r} to the unknown group {entry.group}", hint + remedy, name)
    if not entry.name:
        return Problem(f"{name} offers {entry.value!r} without a name in {entry.group}", remedy, name)
    parts = split_target(entry.value)
    if parts is None or (parts[1] is None and entry.group != HOOKS_GROUP):
        text = f"{name} offers {entry.name!r} in {entry.group} as {entry.value!r}, which is not module:attribute"
        return Problem(text, remedy, name)
    return None
