"""All plugins that are known, gathered through one hook, with what is wrong with the rest."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import did_you_mean
from miles_core.errors import MilesError, PluginNotFound
from miles_core.plugins.discovery import HOOKS_GROUP
from miles_core.plugins.loader import import_target
from miles_core.plugins.manager import DistributionPlugin, Manager
from miles_core.plugins.reference import HOOKS, PluginRef, normalise, tidy_target
from miles_core.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.plugins.discovery import Discovery, PluginDistribution


logger = logging.getLogger("miles.plugins")


class Catalog:
    """References to every plugin, by kind, name and distribution; filling it imports nothing.

    ``failures`` are hand-written modules that could not be imported or registered, one sentence each.
    """

    def __init__(self, discovery: Discovery, block: Iterable[str]) -> None:
        self._manager = Manager()
        self._refs: list[PluginRef] = []
        self._blocked: list[PluginRef] = []
        self._modules: list[PluginRef] = []
        self._metadata_problems = discovery.problems
        self.failures: list[str] = []
        barred = _barred(block, discovery)
        for distribution in discovery.distributions:
            self._add(distribution, blocked=distribution.name in barred)
        self._waiting = self.modules

    @property
    def refs(self) -> tuple[PluginRef, ...]:
        """What may be used."""
        return _ordered(self._refs)

    @property
    def blocked(self) -> tuple[PluginRef, ...]:
        """What blocked distributions would have offered."""
        return _ordered(self._blocked)

    @property
    def modules(self) -> tuple[PluginRef, ...]:
        """Hand-written modules, which add plugins at run time."""
        return _ordered(self._modules)

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong, one sentence each: metadata, failed modules, names that several distributions offer."""
        return (*self._metadata_problems, *self.failures, *_conflicts(self._refs))

    def run_modules(self) -> None:
        """Import the hand-written modules, once, and take the plugins that they add; a broken one is a failure."""
        # Emptied first: a module that asks for a plugin while it is imported must not start over.
        waiting, self._waiting = self._waiting, ()
        for module in waiting:
            registry = Registry(module.distribution or "", module.version or "")
            try:
                with redirect_stdout(sys.stderr):
                    self._manager.collect(import_target(module), module.qualified_name, registry)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - nobody asked for it: a row, not the end
                self.failures.append(_failure(module, error))
            else:
                self._refs.extend(registry.refs)

    def call(self, hook: str, **arguments: Any) -> None:
        """Call an observer hook of every module; one that raises is warned about, and the others are called."""
        plugins = list(self._manager.get_plugins())
        for plugin in plugins:
            others = [other for other in plugins if other is not plugin]
            try:
                self._manager.subset_hook_caller(hook, others)(**arguments)
            except Exception as error:  # noqa: BLE001 - an observer decides nothing
                name = self._manager.get_name(plugin)
                logger.warning("%s: %s() raised %s: %s", name, hook, type(error).__name__, error)

    def _add(self, distribution: PluginDistribution, *, blocked: bool) -> None:
        registry = Registry(distribution.name, distribution.version)
        plugin = DistributionPlugin(distribution)
        if blocked:
            plugin.miles_register(registry)
            self._blocked.extend(registry.refs)
            return
        self._manager.collect(plugin, distribution.name, registry)
        self._refs.extend(registry.refs)
        self._modules.extend(
            PluginRef(HOOKS, entry.name, tidy_target(entry.value), distribution.name, distribution.version)
            for entry in distribution.entries
            if entry.group == HOOKS_GROUP
        )


def _ordered(refs: Iterable[PluginRef]) -> tuple[PluginRef, ...]:
    return tuple(sorted(refs, key=lambda ref: (ref.kind, ref.name, ref.distribution or "", ref.target)))


def _barred(block: Iterable[str], discovery: Discovery) -> set[str]:
    barred = {normalise(name) for name in block}
    installed = [distribution.name for distribution in discovery.distributions]
    if unknown := sorted(barred.difference(installed)):
        raise PluginNotFound(
            f"[plugins] block names {unknown[0]!r}, which offers no plugins; these do: {', '.join(installed)}",
            remedy=did_you_mean(unknown[0], installed) or f"Take {unknown[0]!r} out.",
        )
    return barred


def _failure(module: PluginRef, error: BaseException) -> str:
    if isinstance(error, MilesError):
        text = f"{error.message}. {error.remedy}" if error.remedy else error.message
    else:
        text = f"{type(error).__name__}: {error}"
    return text if str(module) in text else f"{module} failed to register: {text}"


def _conflicts(refs: Iterable[PluginRef]) -> list[str]:
    same: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for ref in refs:
        same[ref.kind, ref.name].add(ref.qualified_name)
    return [
        f"{kind} {name!r} is offered more than once; write one of: {', '.join(sorted(qualified))}"
        for (kind, name), qualified in sorted(same.items())
        if len(qualified) > 1
    ]
