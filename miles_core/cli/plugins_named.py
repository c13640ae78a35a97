"""The plugins that the argument of a command names, whatever their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean, listed
from miles_core.errors import PluginNotFound
from miles_core.plugins.reference import HOOKS
from miles_core.plugins.resolve import matching

if TYPE_CHECKING:
    from miles_core.plugins.hub import Hub


def kinds_with(hub: Hub, name: str) -> list[str]:
    """The kinds that have a plugin of this name, also one that is left out: resolving that says why."""
    refs = [*hub.refs(computed=True), *(row.ref for row in hub.left_out)]
    return sorted({ref.kind for ref in matching(refs, name)} - {HOOKS})


def not_found(hub: Hub, name: str) -> PluginNotFound:
    """The error for a name that no kind has."""
    refs = [row.ref for row in hub.listing]
    known = sorted({ref.name for ref in refs})
    return PluginNotFound(
        f"no plugin is called {name!r}; installed: {listed(known)}",
        remedy="Add --kind to name a module:attribute."
        if ":" in name
        else did_you_mean(name, [*known, *(ref.qualified_name for ref in refs)]) or "Run `miles plugins list`.",
    )
