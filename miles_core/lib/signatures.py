"""How plugin code can be called: awaited or not, and with which arguments."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any


def is_async(function: object) -> bool:
    """Whether calling it gives something to await: a coroutine function, or an object whose ``__call__`` is one."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def signature_of(function: Callable[..., Any], *, wrapped: bool = False) -> inspect.Signature | None:
    """The signature; ``None`` where it cannot be read, as of some built-ins.

    It is that of a decorator's wrapper, which is what is called, or that of the function in it if ``wrapped``.
    """
    try:
        return inspect.signature(function, follow_wrapped=wrapped)
    except Exception:  # noqa: BLE001 - what cannot be read cannot be judged, whatever the plugin did to it
        return None


def fits(signature: inspect.Signature, positional: Sequence[str], keywords: Collection[str] = ()) -> bool:
    """Whether a call with so many positional arguments and these keywords is possible."""
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def accepted(function: Callable[..., Any], positional: int, offered: Sequence[str]) -> tuple[str, ...]:
    """Those of the ``offered`` keywords that the function takes beside its first ``positional`` arguments."""
    taken = tuple(offered)
    for wrapped in (False, True):
        signature = signature_of(function, wrapped=wrapped)
        taken = () if signature is None else tuple(name for name in taken if _takes(signature, positional, name))
    return taken


def _takes(signature: inspect.Signature, positional: int, name: str) -> bool:
    parameters = list(signature.parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.name == name for p in places[positional:] if p.kind is p.POSITIONAL_OR_KEYWORD):
        return True
    if any(p.name == name for p in places):
        return False  # it is one of the positional arguments
    return any(p.kind is p.VAR_KEYWORD or (p.kind is p.KEYWORD_ONLY and p.name == name) for p in parameters)
