"""pluggy with its traps closed: every distribution is one plugin, attributed and transactional."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pluggy

from miles_core.errors import PluginError
from miles_core.plugins import hookspecs
from miles_core.plugins.discovery import HOOKS_GROUP

if TYPE_CHECKING:
    from pluggy import HookimplOpts

    from miles_core.plugins.discovery import PluginDistribution
    from miles_core.plugins.registry import Registry

PREFIX = "miles_"


class DistributionPlugin:
    """The pluggy plugin of one distribution: it adds the distribution's entry points."""

    def __init__(self, distribution: PluginDistribution) -> None:
        self._distribution = distribution

    def miles_register(self, registry: Registry) -> None:
        """Add every entry point whose group is a kind."""
        for entry in self._distribution.entries:
            if entry.group != HOOKS_GROUP:
                registry.add(entry.group.removeprefix("miles."), entry.name, entry.value)


class Manager(pluggy.PluginManager):
    """Takes ``miles_*`` functions as hook implementations, decorated or not, and nothing else."""

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> HookimplOpts | None:
        """Options of the hook implementation ``name``, ``None`` if it is none.

        Raises:
            PluginError: if a parameter has a default, because pluggy would never pass it.
        """
        if not name.startswith(PREFIX) or not inspect.isroutine(inspect.getattr_static(plugin, name, None)):
            return None
        parameters = inspect.signature(getattr(plugin, name)).parameters.values()
        defaults = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
        if defaults:
            raise PluginError(f"the parameter {defaults[0]!r} of {name} has a default", remedy="Remove the default.")
        return super().parse_hookimpl_opts(plugin, name) or _plain_hookimpl()

    def collect(self, plugin: Any, name: str, registry: Registry) -> None:
        """Register ``plugin`` and let it, and no other, fill ``registry``; on failure it is taken out again."""
        self.register(plugin, name)
        try:
            self.check_pending()
            if not self.get_hookcallers(plugin):
                raise PluginError(f"{name} implements no hook", remedy="Define miles_register(registry) in it.")
            others = [other for other in self.get_plugins() if other is not plugin]
            self.subset_hook_caller("miles_register", others)(registry=registry)
        except BaseException:
            self.unregister(plugin)
            raise


def _plain_hookimpl() -> HookimplOpts:
    return {
        "wrapper": False,
        "hookwrapper": False,
        "optionalhook": False,
        "tryfirst": False,
        "trylast": False,
        "specname": None,
    }
