"""From a reference to a factory: import, validate, adapt; every failure names the plugin."""

from __future__ import annotations

import functools
import importlib
import traceback
from typing import TYPE_CHECKING, Any

from miles_core.adapters import adapted
from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.lib.error_text import UNREADABLE, error_text, reads_metadata, value_text
from miles_core.plugins.loading.call_shape import check_factory
from miles_core.plugins.loading.contract import check_class, check_function
from miles_core.plugins.loading.side_effects import contained
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
    if adapter is not None and callable(target):
        return _named_after(target, adapted(ref, adapter, ref.kind, target))
    if isinstance(target, type):
        check_class(ref, target)
        check_factory(ref, target)
        return target
    if isinstance(target, functools.partial) and isinstance(target.func, type):
        return _partial_class(ref, target, target.func)
    if not callable(target):
        raise PluginError(
            f"{ref} is {value_text(target)} of type {type(target).__name__}, which is not callable",
            remedy=f"Let its target name a class{' or a function' if kind.adapt else ''}.",
        )
    if kind.adapt is None:
        raise PluginError(
            f"{ref} is a function; it must be a class",
            remedy=f"Write a class with the members {', '.join(kind.members)}.",
        )
    check_function(ref, target)
    return _named_after(target, kind.adapt(target))


def _partial_class(ref: PluginRef, factory: functools.partial[Any], cls: type) -> Callable[..., Any]:
    """A class with some of its arguments given; what is declared on the class is found on the factory too."""
    check_class(ref, cls)
    check_factory(ref, factory)
    declared = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    named = functools.update_wrapper(functools.partial(factory), cls, updated=())
    vars(named).update(declared)
    return named


def _named_after(function: Callable[..., Any], factory: Callable[..., Any]) -> Callable[..., Any]:
    return functools.update_wrapper(factory, function, assigned=("__module__", "__name__", "__doc__"), updated=())


def import_target(ref: PluginRef) -> Any:
    """The module or attribute that ``ref.target`` names; see :func:`contained` for what its import may not do.

    Raises:
        PluginError: if the target is malformed, or its import fails or exits.
    """
    parts = split_target(ref.target)
    if parts is None or (parts[1] is None and ref.kind in KINDS):
        raise PluginError(f"{ref}: its target is malformed", remedy="Write module:attribute.")
    module_name, attribute = parts
    try:
        with contained(ref):
            found: Any = importlib.import_module(module_name)
            for name in attribute.split(".") if attribute else ():
                found = getattr(found, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"{ref} cannot be loaded: {error_text(error)}{_place(error)}",
            remedy=_remedy(ref, module_name, error),
        ) from error
    return found


def _remedy(ref: PluginRef, module_name: str, error: BaseException) -> str:
    if module_name.endswith(".py"):
        stem = module_name.removesuffix(".py")
        return f"Drop .py: a target names a module, not a file; write {ref.target.replace(module_name, stem, 1)}."
    if reads_metadata(error):
        return UNREADABLE
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
        if ref.distribution is None:
            return f"Install the package that holds {module_name}, or add its folder to PYTHONPATH."
        return f"Reinstall {ref.distribution}, or correct the target of its entry point {ref.name}."
    if missing:
        return f"Install the package that holds {missing}."
    return _nearest(error) or f"Repair {ref.distribution or module_name}, or use another plugin."


def _nearest(error: BaseException) -> str | None:
    """The attribute that the target may mean, where its module or class has none of that name."""
    if not isinstance(error, AttributeError) or not error.name or _place(error):
        return None
    return did_you_mean(error.name, [name for name in dir(error.obj) if not name.startswith("_")])


def _place(error: BaseException) -> str:
    """The last frame outside the import system: where the plugin's own code failed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen")
    ]
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
