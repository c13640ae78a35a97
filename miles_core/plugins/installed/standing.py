"""Whether a distribution's plugins may be used, and if not, why and what would change that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from miles_core import __version__
from miles_core.plugins.installed.compatibility import compatibility
from miles_core.plugins.installed.policy import AUTOLOAD, OWN
from miles_core.plugins.installed.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from miles_core.plugins.installed.discovery import PluginDistribution
    from miles_core.plugins.installed.policy import PluginPolicy
    from miles_core.plugins.reference import PluginRef

State = Literal["compatible", "undeclared", "incompatible", "blocked", "off"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one distribution; ``reason`` and ``remedy`` where its plugins are left out.

    ``compatible`` and ``undeclared`` (it does not say which versions of miles-hub it works with) may be used.
    """

    state: State
    reason: str = ""
    remedy: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def takes_part(self) -> bool:
        """Whether its plugins may be used."""
        return self.state in ("compatible", "undeclared")


@dataclass(frozen=True, slots=True)
class Listed:
    """One plugin; ``reason`` and ``remedy`` where it is left out.

    A hand-written module is ``computed``: it adds plugins only when it runs, so they cannot be listed.
    """

    ref: PluginRef
    state: State | Literal["computed"]
    reason: str = ""
    remedy: str = ""

    @property
    def left_out(self) -> bool:
        """Whether it may not be used."""
        return self.state in ("incompatible", "blocked", "off")


def standing(
    distribution: PluginDistribution, policy: PluginPolicy, blocked: Collection[str], required: Collection[str]
) -> Standing:
    """Judge one distribution; ``blocked`` and ``required`` are normalised names."""
    name = distribution.name
    if name == OWN:
        return Standing("compatible")
    if name in blocked:
        return Standing("blocked", "[plugins] block names it", f"Take {name!r} out of [plugins] block.")
    if not policy.third_party:
        return Standing("off", "only miles-hub takes part (--no-plugins)", "Leave out --no-plugins.")
    if not policy.autoload and name not in required:
        remedy = f"Name {name!r} in [plugins] require, or unset {AUTOLOAD} and [plugins] autoload."
        return Standing("off", "autoload is off and [plugins] require does not name it", remedy)
    found = compatibility(distribution.facts.requires)
    problems = tuple(_malformed(distribution, found.malformed))
    if found.unmet:
        reason = f"it needs {', '.join(found.unmet)}, and this is {OWN} {__version__}"
        remedy = f"Install a version of {name} that works with {OWN} {__version__}, or install {found.unmet[0]!r}."
        problem = Problem(f"{name} {distribution.version} is not used: {reason}", remedy, name)
        return Standing("incompatible", reason, remedy, (*problems, problem))
    return Standing("compatible" if found.declared else "undeclared", problems=problems)


def _malformed(distribution: PluginDistribution, lines: tuple[str, ...]) -> Iterator[Problem]:
    for line in lines:
        text = f"{distribution.name} {distribution.version} declares {line!r}, which is no valid requirement"
        yield Problem(text, "Tell its author; it is taken as not declared.", distribution.name)
