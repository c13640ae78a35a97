"""Where the hook ``miles_register`` puts plugins, as lazy references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.plugins.reference import PluginRef, tidy_target

if TYPE_CHECKING:
    from collections.abc import Callable


class Registry:
    """Gathers the plugins of one distribution.

    The hub takes them over only when the whole hook has succeeded, so a failed one leaves no half.
    """

    def __init__(self, distribution: str, version: str) -> None:
        self._distribution = distribution
        self._version = version
        self._refs: list[PluginRef] = []

    @property
    def refs(self) -> tuple[PluginRef, ...]:
        """What was added, in order."""
        return tuple(self._refs)

    def add(self, kind: str, name: str, target: str | Callable[..., Any]) -> None:
        """Add one plugin: ``kind`` is a plural such as ``reward_models``.

        ``target`` is ``module:attribute``, imported when the plugin is first used, or the factory itself.

        Raises:
            PluginError: if the kind is unknown, the name is empty or the target is neither text nor callable.
        """
        if kind not in KINDS:
            raise PluginError(
                f"{self._distribution} adds {name!r} to the unknown kind {kind!r}; kinds: {', '.join(KINDS)}",
                remedy=did_you_mean(kind, KINDS),
            )
        if not isinstance(name, str) or not name.strip():
            raise PluginError(f"{self._distribution} adds to {kind} a plugin whose name is {name!r}; expected text")
        if isinstance(target, str):
            self._refs.append(PluginRef(kind, name, tidy_target(target), self._distribution, self._version))
        elif callable(target):
            where = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', '?')}"
            self._refs.append(PluginRef(kind, name, where, self._distribution, self._version, target))
        else:
            raise PluginError(
                f"{self._distribution} adds {name!r} to {kind} as {target!r}",
                remedy="Give 'module:attribute' or a factory.",
            )
