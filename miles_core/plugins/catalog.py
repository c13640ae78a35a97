"""All plugins that are known, gathered through one hook, with what is wrong with the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import MilesError
from miles_core.lib.error_text import error_text
from miles_core.plugins.installed.conflicts import conflicts
from miles_core.plugins.installed.discovery import HOOKS_GROUP
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.installed.preferences import check_preferred
from miles_core.plugins.installed.problem import Problem
from miles_core.plugins.installed.requirements import blocked_names, check_required, parsed
from miles_core.plugins.installed.standing import Listed, Standing, standing
from miles_core.plugins.lifecycle.manager import DistributionPlugin, Manager, place
from miles_core.plugins.loading.loader import import_target
from miles_core.plugins.loading.side_effects import stdout_on_stderr
from miles_core.plugins.reference import HOOKS, PluginRef, normalise, tidy_target
from miles_core.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.plugins.installed.discovery import Discovery, PluginDistribution
    from miles_core.plugins.installed.policy import PluginPolicy
    from miles_core.plugins.lifecycle.implementations import Implementation


class Catalog:
    """References to every plugin, by kind, name and distribution; filling it imports nothing.

    Raises:
        PluginNotFound: if the policy names what is not installed, or requires another version.
        ConfigError: if a name in the policy is malformed.
    """

    def __init__(self, discovery: Discovery, policy: PluginPolicy) -> None:
        self._manager = Manager()
        self._policy = policy
        self._refs: list[PluginRef] = []
        self._modules: list[PluginRef] = []
        self._left_out: list[PluginRef] = []
        self._broken: list[Problem] = []
        self._distributions = {distribution.name: distribution for distribution in discovery.distributions}
        blocked, required = blocked_names(policy, discovery), parsed(policy)
        self._standings = {
            name: standing(distribution, policy, blocked, required)
            for name, distribution in self._distributions.items()
        }
        check_required(required, discovery, self._standings)
        self._problems = [problem for problem in discovery.problems if self._concerns(problem.distribution)]
        for name, found in self._standings.items():
            self._problems.extend(found.problems)
            self._add(self._distributions[name], found)
        self._waiting = tuple(sorted(self._modules, key=lambda module: place(module.qualified_name)))
        self._check_preferred({module.distribution for module in self._waiting})

    @property
    def refs(self) -> tuple[PluginRef, ...]:
        """What may be used."""
        return _ordered(self._refs)

    @property
    def listing(self) -> tuple[Listed, ...]:
        """Everything that is known, also what is left out."""
        rows = [
            *(Listed(ref, self.standing_of(ref).state) for ref in self._refs),
            *(Listed(module, "computed") for module in self._modules),
        ]
        for ref in self._left_out:
            found = self.standing_of(ref)
            rows.append(Listed(ref, found.state, found.reason, found.remedy))
        return tuple(sorted(rows, key=lambda row: _key(row.ref)))

    @property
    def modules(self) -> tuple[PluginRef, ...]:
        """Hand-written modules, which add plugins at run time."""
        return _ordered(self._modules)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong: metadata, versions, failed modules, names that several plugins have."""
        return (*self._problems, *self._broken, *conflicts(self._refs, self._policy.prefer))

    @property
    def failures(self) -> tuple[str, ...]:
        """Hand-written modules that could not be imported or registered, one sentence each."""
        return tuple(str(problem) for problem in self._broken)

    @property
    def prefer(self) -> tuple[str, ...]:
        """The ``distribution/name`` that win collisions."""
        return self._policy.prefer

    def distribution(self, name: str) -> PluginDistribution | None:
        """The distribution of a normalised name, if it offers plugins."""
        return self._distributions.get(name)

    def standing_of(self, ref: PluginRef) -> Standing:
        """The standing of a plugin's distribution; a written target is the user's own choice."""
        return self._standings.get(ref.distribution or "") or Standing("compatible")

    def run_modules(self) -> None:
        """Import the hand-written modules, once, and take the plugins that they add; a broken one is a failure."""
        # Emptied first: a module that asks for a plugin while it is imported must not start over.
        waiting, self._waiting = self._waiting, ()
        for module in waiting:
            registry = Registry(module.distribution or "", module.version or "")
            try:
                with stdout_on_stderr():
                    self._manager.collect(import_target(module), module.qualified_name, registry, module.label)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - nobody asked for it: a row, not the end
                self._fail(module, error)
            else:
                self._refs.extend(registry.refs)
        if waiting:
            self._check_preferred()

    @property
    def implementations(self) -> list[Implementation]:
        """The lifecycle hooks of the modules that ran, in the order in which they are called."""
        return self._manager.implementations

    def _add(self, distribution: PluginDistribution, found: Standing) -> None:
        registry = Registry(distribution.name, distribution.version)
        plugin = DistributionPlugin(distribution)
        modules = [
            PluginRef(HOOKS, entry.name, tidy_target(entry.value), distribution.name, distribution.version)
            for entry in distribution.entries
            if entry.group == HOOKS_GROUP
        ]
        if found.takes_part:
            self._manager.collect(plugin, distribution.name, registry)
            self._refs.extend(registry.refs)
            self._modules.extend(modules)
        else:
            plugin.miles_register(registry)
            self._left_out.extend((*registry.refs, *modules))

    def _concerns(self, name: str) -> bool:
        """Whether problems with a distribution are worth a word: not if the user turned it off."""
        if name in self._standings:
            return self._standings[name].state not in ("blocked", "off")
        return self._policy.third_party or name == OWN

    def _fail(self, module: PluginRef, error: BaseException) -> None:
        text, remedy = error_text(error), ""
        if isinstance(error, MilesError):
            text, remedy = error.message, error.remedy or ""
        text = text if str(module) in text else f"{module} failed to register: {text}"
        remedy = remedy or f"Repair {module.distribution}, or name it in [plugins] block."
        self._broken.append(Problem(text, remedy, module.distribution or ""))

    def _check_preferred(self, open_distributions: Iterable[str | None] = ()) -> None:
        """Refuse unknown preferences, except for distributions whose modules may yet add the plugin."""
        offered: dict[str, set[str]] = {name: set() for name in self._distributions}
        for ref in (*self._refs, *self._left_out):
            offered[ref.distribution or ""].add(ref.name)
        waiting = set(open_distributions)
        check_preferred([text for text in self.prefer if normalise(text.partition("/")[0]) not in waiting], offered)


def _key(ref: PluginRef) -> tuple[str, str, str, str]:
    return ref.kind, ref.name, ref.distribution or "", ref.target


def _ordered(refs: Iterable[PluginRef]) -> tuple[PluginRef, ...]:
    return tuple(sorted(refs, key=_key))
