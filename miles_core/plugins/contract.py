"""Whether a plugin's class, and then its object, is what its kind needs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError
from miles_core.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.plugins.reference import PluginRef


def check_class(ref: PluginRef, cls: type) -> None:
    """Refuse a class whose objects cannot serve.

    Raises:
        PluginError: if a member is missing, has a value that this version does not run, or is wrongly sync or async.
    """
    kind = KINDS[ref.kind]
    # Not hasattr: every class has a `__call__`, its metaclass's.
    has: set[str] = set()
    for base in cls.__mro__:
        has.update(vars(base), vars(base).get("__annotations__", ()))
    missing = [member for member in kind.members if member not in has]
    if missing:
        raise PluginError(
            f"{ref} lacks {', '.join(missing)}; a {kind.singular} has the members {', '.join(kind.members)}",
            remedy=f"Add {missing[0]} to the class {cls.__qualname__}.",
        )
    for member in kind.choices:
        value = getattr(cls, member, None)
        if isinstance(value, str):  # a property or a bare annotation: the object will tell
            _check_choice(ref, member, value)
    for member in kind.awaited:
        if callable(method := getattr(cls, member, None)):
            _check_awaited(ref, member, method)


def check_function(ref: PluginRef, function: Callable[..., Any]) -> None:
    """Refuse a coroutine function for a kind that calls it without awaiting.

    Raises:
        PluginError: if it is one.
    """
    if inspect.iscoroutinefunction(function) and False in KINDS[ref.kind].awaited.values():
        raise PluginError(
            f"{ref} is a coroutine function; a {KINDS[ref.kind].singular} is called without await",
            remedy="Write `def` instead of `async def`.",
        )


def check_object(ref: PluginRef, made: object) -> None:
    """Refuse an object that cannot serve: ``__init__`` may have set what the class left open.

    Raises:
        PluginError: if a member is missing, has a value that this version does not run, or is wrongly sync or async.
    """
    kind = KINDS[ref.kind]
    if missing := [member for member in kind.members if not hasattr(made, member)]:
        raise PluginError(f"{ref} made an object without {', '.join(missing)}", remedy=f"Set {missing[0]} in it.")
    for member in kind.choices:
        _check_choice(ref, member, getattr(made, member))
    for member in kind.awaited:
        _check_awaited(ref, member, getattr(made, member))


def _check_choice(ref: PluginRef, member: str, value: object) -> None:
    supported = KINDS[ref.kind].choices[member]
    if value not in supported:
        choices = " or ".join(repr(choice) for choice in supported)
        raise PluginError(
            f"{ref} has {member} = {value!r}; this version runs {choices}", remedy=f"Set {member} to one of these."
        )


def _check_awaited(ref: PluginRef, member: str, method: object) -> None:
    awaited = KINDS[ref.kind].awaited[member]
    if inspect.iscoroutinefunction(method) == awaited:
        return
    if awaited:
        raise PluginError(f"{ref}: {member} must be a coroutine function", remedy=f"Write `async def {member}`.")
    raise PluginError(
        f"{ref}: {member} is a coroutine function, but is called without await",
        remedy=f"Write `def {member}` instead of `async def {member}`.",
    )
