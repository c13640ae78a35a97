"""Making a plugin as a run makes it, from whatever names it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from miles_core.kinds import PluginContext
from miles_core.plugins.hub import Hub
from miles_core.plugins.reference import PluginRef

if TYPE_CHECKING:
    from collections.abc import Mapping


def plugin_ref(hub: Hub, kind: str, plugin: Any) -> PluginRef:
    """The plugin that ``plugin`` names, or is: a name, ``module:attribute``, a class or a function.

    Raises:
        PluginNotFound: if nothing, or more than one plugin, answers to the name.
    """
    if isinstance(plugin, PluginRef):
        return plugin
    if isinstance(plugin, str):
        return hub.resolve(kind, plugin)
    if isinstance(plugin, staticmethod):
        plugin = plugin.__func__
    name = getattr(plugin, "__qualname__", repr(plugin))
    module = inspect.getmodule(plugin)
    return PluginRef(kind, name, f"{module.__name__ if module else '?'}:{name}", factory=plugin)


def make_plugin(
    kind: str,
    plugin: Any,
    options: Mapping[str, Any] | None = None,
    context: PluginContext | None = None,
    *,
    hub: Hub | None = None,
    app: Any = None,
) -> Any:
    """A plugin's object as a run makes it: found, loaded, its options validated, its object checked.

    ``kind`` is a plural such as ``reward_models``; ``plugin`` is a name, ``module:attribute``, a class or a function.

    Raises:
        ConfigError: if an option is unknown or wrong.
        PluginError: if the plugin cannot be found, loaded or made.
    """
    hub = hub or Hub.discover()
    ref = plugin_ref(hub, kind, plugin)
    config = hub.configure(kind, ref, options or {})
    return hub.create(kind, ref, config, context or PluginContext(), app)
