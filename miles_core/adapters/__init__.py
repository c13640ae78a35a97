"""Functions with the signatures of other projects, as plugins of ours; named by a table's ``adapter`` key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

ADAPTERS: dict[str, dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {}
"""By adapter and kind: from a foreign function to a factory ``(config, context)``."""


def adapted(adapter: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The factory of a foreign function.

    Raises:
        PluginError: if the adapter has nothing for this kind.
    """
    kinds = ADAPTERS.get(adapter, {})
    if kind not in kinds:
        known = ", ".join(kinds) or "none"
        raise PluginError(
            f'adapter = "{adapter}" does not adapt {kind}; it adapts: {known}', remedy="Remove the key `adapter`."
        )
    return kinds[kind](function)
