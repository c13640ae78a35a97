"""What names a plugin: references, targets and normalised distribution names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from miles_core.kinds import KINDS

HOOKS = "hooks"
"""The ``kind`` of references to hand-written modules (entry-point group ``miles``)."""

FUNCTIONS = "functions"
"""The ``kind`` of references to functions that a key of the config names, such as ``[session] match``."""

_TARGET = re.compile(r"\s*(?P<module>[^:\s\[]+)\s*(:\s*(?P<attribute>[^:\s\[]+)\s*)?(?P<extras>\[.*\]\s*)?")


@dataclass(frozen=True, slots=True)
class PluginRef:
    """One plugin, not yet imported.

    ``kind`` is a plural of ``KINDS``, or ``hooks`` for a hand-written module. ``target`` is ``module:attribute``.
    ``distribution`` (normalised) and ``version`` are ``None`` where the user wrote a target instead of a name.
    ``factory`` holds the object where a hand-written module registered one instead of a target.
    """

    kind: str
    name: str
    target: str
    distribution: str | None = None
    version: str | None = None
    factory: Any = field(default=None, compare=False, repr=False)

    @property
    def qualified_name(self) -> str:
        """``distribution/name``, which is unique; the plain name where no distribution is known."""
        return f"{self.distribution}/{self.name}" if self.distribution else self.name

    @property
    def label(self) -> str:
        """How errors, warnings and metrics of a running plugin call it: name, distribution and version."""
        return f"{self.name} ({self.distribution} {self.version})" if self.distribution else self.target

    def __str__(self) -> str:
        others = {HOOKS: "plugin module", FUNCTIONS: "function"}
        singular = KINDS[self.kind].singular if self.kind in KINDS else others.get(self.kind, "plugin")
        if self.distribution is None:
            return f"{singular} {self.target}"
        return f"{singular} {self.name!r} ({self.target}, distribution {self.distribution} {self.version})"


def normalise(distribution: str) -> str:
    """A distribution's name as PyPA compares names: lower case, runs of ``-_.`` as one ``-``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def split_target(target: str) -> tuple[str, str | None] | None:
    """``(module, attribute)`` of an entry-point value, extras dropped; ``None`` if it is malformed."""
    match = _TARGET.fullmatch(target)
    return (match["module"], match["attribute"]) if match else None


def written_target(text: str) -> str | None:
    """``module:attribute`` as the user wrote it, or as ``pkg.mod.fn``; ``None`` for what is a name."""
    if ":" in text:
        return text
    module, dot, attribute = text.rpartition(".")
    return f"{module}:{attribute}" if dot and all(part.isidentifier() for part in text.split(".")) else None


def tidy_target(target: str) -> str:
    """An entry-point value without spaces and extras; malformed ones stay as they are."""
    parts = split_target(target)
    return ":".join(part for part in parts if part) if parts else target
