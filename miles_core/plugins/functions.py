"""Functions that the config names: a built-in name, or ``module:attribute``, with the table's other keys as options."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError, PluginNotFound
from miles_core.lib.signatures import is_async
from miles_core.plugins.function_options import with_options, write_as
from miles_core.plugins.loader import import_target
from miles_core.plugins.reference import FUNCTIONS, PluginRef, split_target

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
    target = _target(text)
    if target is None:
        known = f"built in: {', '.join(built_in)}" if built_in else "nothing is built in"
        raise PluginNotFound(
            f"{key} = {text!r} names no function; {known}",
            remedy=did_you_mean(text, built_in) or "Write module:attribute for a function of yours.",
        )
    try:
        return import_target(PluginRef(FUNCTIONS, text, target))
    except PluginError as error:
        raise PluginError(
            f"{key} = {text!r}: {error.message}", remedy=_nearest_attribute(target) or error.remedy
        ) from error


def label_of(function: Any) -> str:
    """How errors call a function: ``module:name``."""
    inner = function.func if isinstance(function, partial) else function
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{named.__module__}:{named.__qualname__}"


def _target(text: str) -> str | None:
    """``module:attribute``, also where it is written with dots only."""
    if ":" in text:
        return text
    module, dot, attribute = text.rpartition(".")
    return f"{module}:{attribute}" if dot and all(part.isidentifier() for part in text.split(".")) else None


def _nearest_attribute(target: str) -> str | None:
    module, attribute = split_target(target) or ("", None)
    if attribute is None or module not in sys.modules:
        return None
    return did_you_mean(attribute, [name for name in vars(sys.modules[module]) if not name.startswith("_")])


def _kind_of(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"of type {type(value).__name__}"
