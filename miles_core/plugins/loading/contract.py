"""Whether a plugin's class, and then its object, is what its kind needs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.lib.signatures import is_async
from miles_core.plugins.loading.call_shape import check_function_shape, check_methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.plugins.reference import PluginRef


def check_class(ref: PluginRef, cls: type) -> None:
    """Refuse a class whose objects cannot serve.

    Raises:
        PluginError: if a member is missing or abstract, has a value that this version does not run, is wrongly sync or
            async, or cannot be called as the host calls it.
    """
    kind = KINDS[ref.kind]
    # Not hasattr: every class has a `__call__`, its metaclass's, and a subclass of the Protocol its empty methods.
    has: set[str] = set()
    for base in cls.__mro__:
        if base not in (kind.protocol, kind.other_protocol):
            has.update(vars(base), vars(base).get("__annotations__", ()))
    protocol, members = kind.form(has)
    missing = [member for member in members if member not in has]
    if missing:
        other = f", or {' and '.join(kind.other_members)}" if kind.other_members else ""
        raise PluginError(
            f"{ref} lacks {', '.join(missing)}; a {kind.singular} has the members {', '.join(members)}{other}",
            remedy=f"Add {', '.join(missing)} to the class {cls.__qualname__}, or name it in the table of its kind.",
        )
    if inspect.isabstract(cls):
        abstract = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PluginError(
            f"{ref} cannot be made: its class {cls.__qualname__} leaves {abstract} abstract",
            remedy="Implement them, or name a class that does.",
        )
    for member in kind.choices:
        value = getattr(cls, member, None)
        if isinstance(value, str | tuple | list | set | frozenset):  # not a property: the object will tell
            _check_choice(ref, member, value)
    for member in kind.awaited:
        if callable(method := getattr(cls, member, None)):
            _check_awaited(ref, member, method)
    check_methods(ref, cls, protocol)


def check_function(ref: PluginRef, function: Callable[..., Any]) -> None:
    """Refuse a plain function that its kind cannot call.

    Raises:
        PluginError: if it is a coroutine function where none is awaited, a generator, or takes other arguments.
    """
    kind = KINDS[ref.kind]
    if is_async(function) and False in kind.awaited.values():
        raise PluginError(
            f"{ref} is a coroutine function; a {kind.singular} is called without await",
            remedy="Write `def` instead of `async def`.",
        )
    check_function_shape(ref, function)


def check_object(ref: PluginRef, made: object) -> None:
    """Refuse an object that cannot serve: ``__init__`` may have set what the class left open.

    Raises:
        PluginError: if a member is missing, has a value that this version does not run, is wrongly sync or async, or
            cannot be called as the host calls it.
    """
    kind = KINDS[ref.kind]
    names = {member for member in (*kind.members, *kind.other_members) if hasattr(made, member)}
    protocol, members = kind.form(names)
    if missing := [member for member in members if member not in names]:
        raise PluginError(f"{ref} made an object without {', '.join(missing)}", remedy=f"Set {missing[0]} in it.")
    for member in kind.choices:
        _check_choice(ref, member, getattr(made, member))
    for member in kind.awaited:
        _check_awaited(ref, member, getattr(made, member))
    check_methods(ref, made, protocol)


def _check_choice(ref: PluginRef, member: str, value: object) -> None:
    kind = KINDS[ref.kind]
    supported = kind.choices[member]
    words = " or ".join(repr(choice) for choice in supported)
    if not str(kind.protocol.__annotations__[member]).startswith("tuple"):
        if value not in supported:
            raise PluginError(
                f"{ref} has {member} = {value!r}; this version runs {words}", remedy=f"Set {member} to one of these."
            )
        return
    if not isinstance(value, tuple | list | set | frozenset):
        raise PluginError(
            f"{ref} has {member} = {value!r}; it must be a tuple of {words}", remedy=f"Write `{member} = (...)`."
        )
    if unknown := [item for item in value if item not in supported]:
        raise PluginError(
            f"{ref} {member} {unknown[0]!r}, which this version does not compute; it computes {words}",
            remedy=f"Take {unknown[0]!r} out of {member}, or use another {kind.singular}.",
        )


def _check_awaited(ref: PluginRef, member: str, method: object) -> None:
    awaited = KINDS[ref.kind].awaited[member]
    if is_async(method) == awaited:
        return
    if awaited:
        raise PluginError(f"{ref}: {member} must be a coroutine function", remedy=f"Write `async def {member}`.")
    raise PluginError(
        f"{ref}: {member} is a coroutine function, but is called without await",
        remedy=f"Write `def {member}` instead of `async def {member}`.",
    )
