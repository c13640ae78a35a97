"""What a plugin module implements of the lifecycle hooks, with every way to get it silently wrong refused."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError
from miles_core.plugins.lifecycle import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "miles_"

SPECS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hookspecs).items()
    if name.startswith(PREFIX) and inspect.isfunction(spec)
}
"""Every hook with the parameters that it offers."""

_MARK = f"{hookspecs.PROJECT}_impl"
_REFUSED = ("tryfirst", "trylast", "wrapper", "hookwrapper", "specname")
_CALLED_WITHOUT_LOOP = ("miles_register", "miles_add_commands")


@dataclass(frozen=True, eq=False)
class Implementation:
    """One hook of one plugin; ``parameters`` are those that it names, ``label`` is what messages call the plugin."""

    hook: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    label: str

    def __str__(self) -> str:
        return f"{self.hook}() of {self.label}"

    def bound(self, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """The function with those of the hook's arguments that it takes."""
        return functools.partial(self.function, **{name: arguments[name] for name in self.parameters})


def implementations(plugin: object, label: str) -> list[Implementation]:
    """The hooks that a module, or an object with methods, implements, by name.

    Only attributes called ``miles_*`` are looked at; the decorator ``pluggy.HookimplMarker("miles")`` may be left out.

    Raises:
        PluginError: for an unknown hook or parameter, a default, an option of pluggy that would change the order or
            wrap other plugins, or anything else that could not be called as the hook says.
    """
    found = []
    for name in dir(plugin):
        if name.startswith("__"):
            continue
        static = inspect.getattr_static(plugin, name, None)
        if name.startswith(PREFIX):
            if inspect.isroutine(static) or name in SPECS:
                found.append(_checked(name, getattr(plugin, name), static, label))
        elif inspect.isfunction(static) and _MARK in vars(static):
            raise PluginError(f"{name} is marked as a hook and is not named as one", remedy=f"Call it {PREFIX}...")
    return [implementation for implementation in found if implementation is not None]


def _checked(name: str, function: Any, static: Any, label: str) -> Implementation | None:
    options: Mapping[str, Any] = getattr(function, _MARK, None) or {}
    if name not in SPECS:
        if options.get("optionalhook"):  # written for another version of miles
            return None
        raise PluginError(
            f"unknown hook {name!r}; hooks: {', '.join(SPECS)}", remedy=did_you_mean(name, SPECS) or "Rename it."
        )
    if not inspect.isroutine(static):
        raise PluginError(f"{name} is a {type(static).__name__}", remedy=f"Write it as a function: def {name}(...).")
    for option in _REFUSED:
        if options.get(option):
            raise PluginError(
                f"{name} asks for {option}; hooks run in a fixed order, each on its own",
                remedy=f"Take {option} out of its decorator.",
            )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{name} is a generator, so nothing of it would run", remedy="Take the `yield` out of it.")
    if name in _CALLED_WITHOUT_LOOP and inspect.iscoroutinefunction(function):
        raise PluginError(f"{name} is a coroutine function; it is called without await", remedy=f"Write `def {name}`.")
    return Implementation(name, function, _parameters(name, function), label)


def _parameters(name: str, function: Any) -> tuple[str, ...]:
    offered = SPECS[name]
    taken = inspect.signature(function).parameters
    for parameter in taken.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(
                f"{name} takes {parameter}, which no hook can fill", remedy=f"Name what it takes: {', '.join(offered)}."
            )
        if parameter.name not in offered:
            raise PluginError(
                f"{name} has the parameter {parameter.name!r}; the hook offers {', '.join(offered)}",
                remedy=did_you_mean(parameter.name, offered) or f"Take {parameter.name} out.",
            )
        if parameter.default is not parameter.empty:
            raise PluginError(f"the parameter {parameter.name!r} of {name} has a default", remedy="Remove the default.")
    return tuple(taken)
