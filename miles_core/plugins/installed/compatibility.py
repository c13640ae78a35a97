"""Whether a distribution's own ``Requires-Dist: miles-hub`` admits the running version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core import __version__
from miles_core.plugins.installed.metadata import requirement_of
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.reference import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class Compatibility:
    """``declared`` holds the requirements on miles-hub that apply here, ``unmet`` those that this version fails.

    ``malformed`` are lines about miles-hub that no one can evaluate; they count as not declared.
    """

    declared: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()


def compatibility(requires: Iterable[str], running: str = __version__) -> Compatibility:
    """Judge the ``Requires-Dist`` lines of a distribution; markers are evaluated, and lines for extras do not apply."""
    lines = [line for line in requires if (name := _NAME.match(line)) and normalise(name[1]) == OWN]
    declared, unmet, malformed = [], [], []
    for line in lines:
        try:
            requirement = requirement_of(line)
        except ValueError:
            malformed.append(line)
            continue
        if requirement is None:
            continue
        declared.append(f"{OWN}{requirement.specifier}")
        if not requirement.specifier.contains(running, prereleases=True):
            unmet.append(declared[-1])
    return Compatibility(tuple(declared), tuple(unmet), tuple(malformed))
