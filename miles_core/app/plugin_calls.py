"""How the calls into a config's plugins are named in errors, warnings and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.kinds import KINDS
from miles_core.lib.plugin_calls import THREADS

if TYPE_CHECKING:
    from miles_core.app.wiring import Wiring
    from miles_core.config.tables import PluginTable
    from miles_core.lib.plugin_calls import PluginCalls
    from miles_core.plugins.reference import PluginRef


def calls_into(wiring: Wiring, kind: str, table: PluginTable, *, threads: int = THREADS) -> PluginCalls:
    """The calls into the plugin that a table names: as ``distribution/name``, or as its target, in metrics."""
    ref = wiring.hub.resolve(kind, table.use)
    name = ref.qualified_name if ref.distribution else ref.target
    return wiring.calls.of(name, title_of(ref, getattr(table, "name", None)), threads)


def title_of(ref: PluginRef, name: str | None = None) -> str:
    """How errors call a plugin: its kind, the table's own name for it, and the plugin with its distribution."""
    singular = KINDS[ref.kind].singular
    return f"{singular} {ref.label}" if name in (None, ref.name) else f"{singular} {name}, {ref.label}"
