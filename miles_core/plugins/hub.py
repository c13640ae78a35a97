"""The hub: one object that finds, loads, configures and makes plugins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from miles_core.errors import MilesError, PluginError
from miles_core.kinds import KINDS
from miles_core.lib.error_text import error_text
from miles_core.plugins.catalog import Catalog
from miles_core.plugins.installed.discovery import find_distributions
from miles_core.plugins.installed.policy import PluginPolicy
from miles_core.plugins.loading.configure import HOST_KEYS, config_model, make_config, table_of
from miles_core.plugins.loading.contract import check_object
from miles_core.plugins.loading.loader import load_factory
from miles_core.plugins.reference import PluginRef
from miles_core.plugins.resolve import kind_named, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel

    from miles_core.config.tables import PluginTable
    from miles_core.kinds import PluginContext
    from miles_core.plugins.installed.discovery import PluginDistribution
    from miles_core.plugins.installed.problem import Problem
    from miles_core.plugins.installed.standing import Listed, State
    from miles_core.plugins.lifecycle.hooks import Hooks


logger = logging.getLogger("miles.plugins")


class Hub:
    """The plugins of one process; make it with :meth:`discover` and use it from one thread, at wiring time.

    A plugin is imported when it is asked for, so a broken one that nobody asks for harms nothing. Two hubs share no
    state. Kinds are named by their plural, such as ``reward_models``.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._factories: dict[tuple[PluginRef, str | None], Callable[..., Any]] = {}
        self._checked: set[tuple[PluginRef, type]] = set()

    @classmethod
    def discover(cls, policy: PluginPolicy | None = None, path: Sequence[str] | None = None) -> Hub:
        """Find all plugins on ``path`` (default: ``sys.path``) by metadata, except those that ``policy`` leaves out.

        Raises:
            PluginNotFound: if the policy names what is not installed, or requires another version.
            ConfigError: if a name in the policy is malformed.
            PluginError: if anything is wrong and the policy is strict.
        """
        policy = policy or PluginPolicy.of()
        hub = cls(Catalog(find_distributions(path), policy))
        if policy.strict:
            hub.refuse_problems()
        return hub

    @property
    def listing(self) -> tuple[Listed, ...]:
        """Everything that is installed with its state, also what is left out, and why."""
        return self._catalog.listing

    @property
    def left_out(self) -> tuple[Listed, ...]:
        """What is installed and may not be used: blocked, off or incompatible."""
        return tuple(row for row in self.listing if row.left_out)

    @property
    def modules(self) -> tuple[PluginRef, ...]:
        """Hand-written modules, which add plugins at run time."""
        return self._catalog.modules

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with plugins that nobody asked for, one sentence each."""
        return tuple(str(problem) for problem in self._catalog.problems)

    @property
    def diagnosis(self) -> tuple[Problem, ...]:
        """The same, with remedies apart."""
        return self._catalog.problems

    def refuse_problems(self) -> None:
        """Import the hand-written modules, and refuse to go on if anything is wrong with any plugin.

        Raises:
            PluginError: with all of it.
        """
        self._catalog.run_modules()
        if problems := self.problems:
            lines = "".join(f"\n  {problem}" for problem in problems)
            raise PluginError(
                f"{len(problems)} problems with plugins, and [plugins] strict (--strict-plugins) allows none:{lines}",
                remedy="Run `miles plugins doctor` after repairing them, or turn strict off.",
            )

    def state_of(self, ref: PluginRef) -> State:
        """The state of a plugin's distribution; ``compatible`` for a written target."""
        return self._catalog.standing_of(ref).state

    def distribution(self, name: str) -> PluginDistribution | None:
        """What is installed under a normalised name, if it offers plugins."""
        return self._catalog.distribution(name)

    def refs(self, kind: str | None = None, *, computed: bool = False) -> tuple[PluginRef, ...]:
        """The plugins by kind, name and distribution; ``computed`` imports hand-written modules and adds theirs.

        Raises:
            PluginError: if there is no such kind.
        """
        if kind is not None:
            kind_named(kind)
        if computed:
            self._catalog.run_modules()
        return tuple(ref for ref in self._catalog.refs if kind in (None, ref.kind))

    def resolve(self, kind: str, ref: str) -> PluginRef:
        """The plugin that ``ref`` names: ``name``, ``distribution/name``, ``module:attribute`` or ``pkg.mod.fn``.

        Raises:
            PluginNotFound: if nothing, or more than one plugin, answers.
        """
        return resolve(kind, ref, self.refs(computed=True), self.left_out, self._catalog.prefer, self._catalog.failures)

    def load(self, ref: PluginRef, adapter: str | None = None) -> Callable[..., Any]:
        """Import the plugin, check it and return its factory; the same one every time.

        ``adapter`` names the project whose signature the function has.

        Raises:
            PluginError: naming kind, name, target, distribution, version and cause.
        """
        if (ref, adapter) not in self._factories:
            self._factories[ref, adapter] = load_factory(ref, adapter)
        return self._factories[ref, adapter]

    def config_model(self, ref: PluginRef, adapter: str | None = None) -> type[BaseModel] | None:
        """The plugin's ``Config`` class, ``None`` if it takes no options.

        Raises:
            PluginError: if the plugin cannot be loaded, or its ``Config`` declares a key of the host.
        """
        return config_model(self.load(ref, adapter), ref)

    def configure(
        self, kind: str, table: PluginTable | PluginRef | str, options: Mapping[str, Any] | None = None
    ) -> BaseModel | None:
        """The plugin's validated ``Config``, ``None`` if it takes no options; ``options`` default to the table's.

        Raises:
            ConfigError: if an option is unknown or wrong.
            PluginError: if the plugin cannot be loaded, or its ``Config`` declares a key of the host.
        """
        if isinstance(table, PluginRef | str):
            ref = self.resolve(kind, table) if isinstance(table, str) else table
            return make_config(self.config_model(ref), table_of(ref), options or {})
        ref = self.resolve(kind, table.use)
        host_keys = HOST_KEYS.union(type(table).model_fields)
        model = config_model(self.load(ref, adapter_of(table)), ref, host_keys)
        return make_config(model, table_of(ref), table.options if options is None else options)

    def hooks(self, timeout: float = 60.0, slow_call: float = 10.0) -> Hooks:
        """The lifecycle hooks of all hand-written modules, which are imported now.

        A module that cannot be imported or registered is a warning; for the rest see ``Hooks``.
        """
        from miles_core.plugins.lifecycle.hooks import (
            Hooks,  # with an event loop behind it: not for `miles plugins list`
        )

        self._catalog.run_modules()
        for failure in self._catalog.failures:
            logger.warning("%s", failure)
        return Hooks(self._catalog.implementations, timeout, slow_call)

    def create(
        self,
        kind: str,
        ref: PluginRef | str,
        config: Any,
        context: PluginContext,
        app: Any = None,
        adapter: str | None = None,
    ) -> Any:
        """Make the plugin's object: ``factory(config, context)``, middlewares ``factory(app, config, context)``.

        Raises:
            PluginError: if the factory fails, or makes what its kind cannot use; an error of miles keeps its type and
                gets a note that names the plugin.
        """
        ref = self.resolve(kind, ref) if isinstance(ref, str) else ref
        factory = self.load(ref, adapter)
        try:
            made = factory(app, config, context) if kind_named(kind).wraps_app else factory(config, context)
        except MilesError as error:
            error.add_note(f"while making the {ref}")
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(
                f"{ref} failed to start: {error_text(error)}", remedy="Check its options, or repair it."
            ) from error
        # Environments are made by the thousand: what their class has is checked once, what an object sets always.
        sets = set(getattr(made, "__dict__", ())).intersection(KINDS[kind].members)
        if sets or (ref, type(made)) not in self._checked:
            check_object(ref, made)
            self._checked.add((ref, type(made)))
        return made

    def build(self, kind: str, table: PluginTable, context: PluginContext, app: Any = None) -> Any:
        """Resolve, load, configure and create what a table of the config names.

        Raises:
            ConfigError: if an option is unknown or wrong.
            PluginError: if the plugin cannot be found, loaded or made.
        """
        ref = self.resolve(kind, table.use)
        return self.create(kind, ref, self.configure(kind, table), context, app, adapter_of(table))


def adapter_of(table: PluginTable) -> str | None:
    """The project whose signature the function of a table has, as its key ``adapter`` says."""
    adapter: str | None = getattr(table, "adapter", None)
    return adapter
