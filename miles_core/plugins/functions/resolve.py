"""Functions that the config names: a built-in name, or ``module:attribute``, with the table's other keys as options."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError, PluginNotFound
from miles_core.lib.signatures import is_async
from miles_core.plugins.functions.options import with_options, write_as
from miles_core.plugins.loading.loader import import_target
from miles_core.plugins.reference import FUNCTIONS, PluginRef, written_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def load_function(
    key: str,
    text: str,
    built_in: Mapping[str, Callable[..., Any]],
    parameters: tuple[str, ...],
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The plain function that ``text``, the value of ``key``, names; it takes ``parameters`` and is not awaited.

    ``options`` become keyword arguments, checked by the function's own annotations; ``None`` where the key has none.

    Raises:
        PluginNotFound: if nothing answers to ``text``.
        PluginError: if it cannot be imported, or is no function of these parameters.
        ConfigError: if an option is unknown, missing or wrong.
    """
    function = find_target(key, text, built_in)
    if isinstance(function, type) or not callable(function):
        raise PluginError(
            f"{key} = {text!r} is {_kind_of(function)}; it must be a function", remedy=write_as(parameters)
        )
    if is_async(function):
        raise PluginError(
            f"{key} = {text!r} is a coroutine function, but is called without await",
            remedy="Write `def` instead of `async def`.",
        )
    return with_options(key, text, function, parameters, options)


def find_target(key: str, text: str, built_in: Mapping[str, Callable[..., Any]]) -> Any:
    """What ``text`` names: one of ``built_in``, or the attribute that it writes out as an import path.

    Raises:
        PluginNotFound: if it is neither.
        PluginError: if it cannot be imported.
    """
    if text in built_in:
        return built_in[text]
    target = written_target(text)
    if target is None:
        known = f"built in: {', '.join(built_in)}" if built_in else "nothing is built in"
        raise PluginNotFound(
            f"{key} = {text!r} names no function; {known}",
            remedy=did_you_mean(text, built_in) or "Write module:attribute for a function of yours.",
        )
    try:
        return import_target(PluginRef(FUNCTIONS, text, target))
    except PluginError as error:
        raise PluginError(f"{key} = {text!r}: {error.message}", remedy=error.remedy) from error


def label_of(function: Any) -> str:
    """How errors call a function: ``module:name``."""
    inner = function.func if isinstance(function, partial) else function
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', 'builtins')}:{named.__qualname__}"


def _kind_of(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"of type {type(value).__name__}"
