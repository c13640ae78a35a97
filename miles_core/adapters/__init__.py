"""Functions with the signatures of other projects, as plugins of ours; named by a table's ``adapter`` key."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

GENERATE = "generate"
"""The kind of ``[rollout] generate`` here, which is no plugin kind."""

ADAPTERS: dict[str, dict[str, str]] = {
    "slime": {
        "environments": "miles_core.adapters.slime.environments",
        "reward_models": "miles_core.adapters.slime.reward_models",
        "filters": "miles_core.adapters.slime.filters",
        GENERATE: "miles_core.adapters.slime.generate",
    }
}
"""By adapter and kind: the module whose ``adapt(function)`` returns a factory ``(config, context)``."""


def adapted(what: object, adapter: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The factory of a foreign function, which errors call ``what``.

    Raises:
        PluginError: if the adapter has nothing for this kind, or the function is a class or has another signature.
    """
    try:
        return _adapted(adapter, kind, function)
    except PluginError as error:
        raise PluginError(f"{what}: {error.message}", remedy=error.remedy) from error


def _adapted(adapter: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    kinds = ADAPTERS.get(adapter, {})
    if kind not in kinds:
        known = ", ".join(kinds) or "none"
        raise PluginError(
            f'adapter = "{adapter}" does not adapt {kind}; it adapts: {known}', remedy="Remove the key `adapter`."
        )
    if isinstance(function, type):
        raise PluginError(
            f'adapter = "{adapter}" adapts functions; {function.__qualname__} is a class',
            remedy="Remove the key `adapter` if the class is written for miles; else name a function that makes it.",
        )
    factory: Callable[..., Any] = import_module(kinds[kind]).adapt(function)
    return factory
