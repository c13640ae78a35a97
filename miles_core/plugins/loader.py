"""From a reference to a factory: import, validate, adapt; every failure names the plugin."""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from miles_core.adapters import adapted
from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.plugins.contract import check_class, check_function
from miles_core.plugins.reference import PluginRef, split_target

if TYPE_CHECKING:
    from collections.abc import Callable


def load_factory(ref: PluginRef, adapter: str | None = None) -> Callable[..., Any]:
    """Import the plugin and return what makes its objects; ``adapter`` names the project whose signature it has.

    Raises:
        PluginError: naming kind, name, target, distribution, version and cause.
    """
    target = import_target(ref) if ref.factory is None else ref.factory
    kind = KINDS[ref.kind]
    if isinstance(target, type):
        check_class(ref, target)
        return target
    if not callable(target):
        raise PluginError(
            f"{ref} is {_short(target)} of type {type(target).__name__}, which is not callable",
            remedy=f"Let its target name a class{' or a function' if kind.adapt else ''}.",
        )
    if adapter is not None:
        return _named_after(target, adapted(adapter, ref.kind, target))
    if kind.adapt is None:
        raise PluginError(
            f"{ref} is a function; it must be a class",
            remedy=f"Write a class with the members {', '.join(kind.members)}.",
        )
    check_function(ref, target)
    return _named_after(target, kind.adapt(target))


def _named_after(function: Callable[..., Any], factory: Callable[..., Any]) -> Callable[..., Any]:
    return functools.update_wrapper(factory, function, assigned=("__module__", "__name__", "__doc__"), updated=())


def import_target(ref: PluginRef) -> Any:
    """The module or attribute that ``ref.target`` names; what its import prints goes to stderr.

    Raises:
        PluginError: if the target is malformed, or its import fails or exits.
    """
    parts = split_target(ref.target)
    if parts is None or (parts[1] is None and ref.kind in KINDS):
        raise PluginError(f"{ref}: its target is malformed", remedy="Write module:attribute.")
    module_name, attribute = parts
    try:
        with redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module_name)
            for name in attribute.split(".") if attribute else ():
                found = getattr(found, name)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{ref} cannot be loaded: {type(error).__name__}: {error}{_place(error)}",
            remedy=_remedy(ref, module_name, error),
        ) from error
    return found


def _remedy(ref: PluginRef, module_name: str, error: BaseException) -> str:
    if module_name.endswith(".py"):
        stem = module_name.removesuffix(".py")
        return f"Drop .py: a target names a module, not a file; write {ref.target.replace(module_name, stem, 1)}."
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
        if ref.distribution is None:
            return f"Install the package that holds {module_name}, or add its folder to PYTHONPATH."
        return f"Reinstall {ref.distribution}, or correct the target of its entry point {ref.name}."
    if missing:
        return f"Install the package that holds {missing}."
    return f"Repair {ref.distribution or module_name}, or use another plugin."


def _place(error: BaseException) -> str:
    """The last frame outside the import system: where the plugin's own code failed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
