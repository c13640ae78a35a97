"""pluggy with its traps closed: every distribution is one plugin, attributed and transactional."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pluggy

from miles_core.errors import PluginError
from miles_core.plugins.installed.discovery import HOOKS_GROUP
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.lifecycle import hookspecs
from miles_core.plugins.lifecycle.implementations import PREFIX, SPECS, implementations

if TYPE_CHECKING:
    from pluggy import HookimplOpts

    from miles_core.plugins.installed.discovery import PluginDistribution
    from miles_core.plugins.lifecycle.implementations import Implementation
    from miles_core.plugins.registry import Registry


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
    """Takes ``miles_*`` functions as hook implementations, decorated or not, and nothing else.

    pluggy keeps the books: who is registered, under which name, against which specifications. The calls are made
    directly, in an order of our own, because pluggy's depends on who was registered when.
    """

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)
        self._implementations: dict[str, list[Implementation]] = {}

    @property
    def implementations(self) -> list[Implementation]:
        """All that are registered: those of miles-hub first, then by distribution and name."""
        return [one for name in sorted(self._implementations, key=place) for one in self._implementations[name]]

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> HookimplOpts | None:
        """Options of the hook implementation ``name``, ``None`` if it is none."""
        if name not in SPECS or not inspect.isroutine(inspect.getattr_static(plugin, name, None)):
            return None
        return super().parse_hookimpl_opts(plugin, name) or _plain_hookimpl()

    def collect(self, plugin: Any, name: str, registry: Registry, label: str | None = None) -> None:
        """Register ``plugin`` and let it fill ``registry``; one that fails is not registered.

        ``name`` is ``distribution`` or ``distribution/name``, ``label`` what messages call the plugin.

        Raises:
            PluginError: if it implements no hook, or one wrongly, or is registered already.
        """
        found = implementations(plugin, label or name)
        if not found:
            raise PluginError(
                f"{name} implements no hook", remedy=f"Define a function {PREFIX}... in it, such as miles_register."
            )
        if self.is_registered(plugin):
            raise PluginError(f"{name} and {self.get_name(plugin)} name the same module", remedy="Name it once.")
        self.register(plugin, name)
        try:
            self.check_pending()
            for implementation in found:
                if implementation.hook == "miles_register":
                    implementation.bound({"registry": registry})()
        except BaseException:
            self.unregister(plugin)
            raise
        self._implementations[name] = found


def place(name: str) -> tuple[bool, str, str]:
    """The place of ``distribution/name`` in the order in which hooks are called."""
    distribution, _, own = name.partition("/")
    return distribution != OWN, distribution, own


def _plain_hookimpl() -> HookimplOpts:
    return {
        "wrapper": False,
        "hookwrapper": False,
        "optionalhook": False,
        "tryfirst": False,
        "trylast": False,
        "specname": None,
    }
