"""Whether a plugin's factory, methods and functions take the arguments that the host gives them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.lib.signatures import accepted, fits, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.plugins.reference import PluginRef


def check_factory(ref: PluginRef, factory: Callable[..., Any]) -> None:
    """Refuse a factory that cannot be called with config and context.

    Raises:
        PluginError: showing both signatures.
    """
    arguments = ("app", "config", "context") if KINDS[ref.kind].wraps_app else ("config", "context")
    signature = signature_of(factory)
    if signature is None or fits(signature, arguments):
        return
    raise PluginError(
        f"{ref} is made by {_name(factory)}({', '.join(arguments)}), but takes {signature}",
        remedy=f"Write `def __init__(self, {', '.join(arguments)})`.",
    )


def check_function_shape(ref: PluginRef, function: Callable[..., Any]) -> None:
    """Refuse a plain function that cannot be called with the arguments of its kind, or that yields.

    Raises:
        PluginError: showing both signatures.
    """
    kind = KINDS[ref.kind]
    _refuse_generator(ref, _name(function), function)
    signature = signature_of(function)
    keywords = accepted(function, len(kind.function), kind.offers)
    if signature is None or fits(signature, kind.function, keywords):
        return
    offers = f", and {' and '.join(kind.offers)} by keyword where it takes them" if kind.offers else ""
    raise PluginError(
        f"{ref} is called as {_name(function)}({', '.join(kind.function)}){offers}; but it takes {signature}",
        remedy=f"Write `def {_name(function)}({', '.join(kind.function)})`; other parameters need defaults.",
    )


def check_methods(ref: PluginRef, owner: object, protocol: type) -> None:
    """Refuse a class, or an object, with a method that cannot be called as the Protocol of its form says.

    Raises:
        PluginError: showing both signatures.
    """
    for name, positional, keywords in _protocol_methods(protocol):
        method, skipped = _method(owner, name)
        if method is None:
            continue
        _refuse_generator(ref, name, method)
        signature = signature_of(method)
        if signature is None or fits(signature, [*skipped, *positional], keywords):
            continue
        call = ", ".join([*positional, *(f"{keyword}=..." for keyword in keywords)])
        declared = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
        raise PluginError(
            f"{ref}: {name} is called as {name}({call}), but takes {signature}",
            remedy=f"Write `def {name}({declared})`; other parameters need defaults.",
        )


def _protocol_methods(protocol: type) -> Iterator[tuple[str, list[str], list[str]]]:
    for name, function in vars(protocol).items():
        if inspect.isfunction(function) and (name == "__call__" or not name.startswith("_")):
            parameters = list(inspect.signature(function).parameters.values())[1:]
            positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            yield name, positional, [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _method(owner: object, name: str) -> tuple[Callable[..., Any] | None, Sequence[str]]:
    """What is called, and the leading arguments that it gets besides; ``None`` where only the object can tell."""
    if not isinstance(owner, type):
        method = getattr(owner, name, None)
        return (method if callable(method) else None), ()
    static = inspect.getattr_static(owner, name, None)
    if isinstance(static, staticmethod | classmethod):
        return getattr(owner, name), ()
    return (static, ("self",)) if inspect.isfunction(static) else (None, ())


def _refuse_generator(ref: PluginRef, name: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{ref}: {name} is a generator", remedy=f"Return a value in {name} instead of yielding it.")


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
