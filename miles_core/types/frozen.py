"""Read-only copies: of data that many share and nobody owns, and of what plugin code only looks at."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import cache
from operator import is_
from typing import Any, NoReturn

_PLAIN = (str, int, float, bytes)


class FrozenDict(dict[str, Any]):
    """A ``dict`` that refuses changes; it pickles, and dumps as JSON, as a ``dict`` does."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this mapping is shared and read-only; change a copy: `{**mapping, key: value}`")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        # the default would fill an empty one key by key
        return FrozenDict, (dict(self),)


_NOTHING = FrozenDict()


def nothing() -> FrozenDict:
    """The empty read-only mapping, as a default: unlike a new ``dict`` it never has to be copied."""
    return _NOTHING


def frozen(value: Any) -> Any:
    """A deeply read-only copy; what is read-only already is shared, not copied.

    Mappings become :class:`FrozenDict`, lists tuples, sets frozensets, numpy arrays read-only views; dataclasses are
    copied where a field of theirs has to be. Other objects stay as they are, and so do those of a class that says
    ``_deeply_frozen = True``: its objects hold nothing that can be changed, from their making on.
    """
    if value is None or isinstance(value, _PLAIN) or getattr(value, "_deeply_frozen", False) is True:
        return value
    if isinstance(value, Mapping):
        return _frozen_mapping(value)
    if isinstance(value, list | tuple):
        return _frozen_sequence(value)
    if isinstance(value, set):
        return frozenset(value)
    cls: Any = type(value)
    if names := _field_names(cls):
        return _frozen_dataclass(value, names)
    return _read_only(value)


def freeze_fields(value: Any, *names: str) -> None:
    """Freeze fields of a frozen dataclass that is being made."""
    for name in names:
        object.__setattr__(value, name, frozen(getattr(value, name)))


def _frozen_mapping(value: Mapping[Any, Any]) -> Any:
    made = {key: frozen(inner) for key, inner in value.items()}
    if isinstance(value, FrozenDict) and all(made[key] is inner for key, inner in value.items()):
        return value
    return FrozenDict(made)


def _frozen_sequence(value: Any) -> Any:
    made = [frozen(inner) for inner in value]
    if isinstance(value, tuple):
        if all(map(is_, made, value)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*made)  # a named tuple
    return tuple(made)


def _frozen_dataclass(value: Any, names: tuple[str, ...]) -> Any:
    changed = {}
    for name in names:
        old = getattr(value, name, None)
        new = frozen(old)
        if new is not old:
            changed[name] = new
    if not changed:
        return value
    if hasattr(value, "__dict__"):
        changed = {**value.__dict__, **changed}
    else:
        changed = {name: changed.get(name, getattr(value, name)) for name in names}
    # Not dataclasses.replace: what was validated once need not be validated again.
    copied = object.__new__(type(value))
    for name, new in changed.items():
        object.__setattr__(copied, name, new)
    return copied


@cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    """Those of a dataclass, remembered: trajectories are copied by the thousand."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else ()


def _read_only(value: Any) -> Any:
    numpy = sys.modules.get("numpy")  # where nobody imported it, there is no array
    if numpy is None or not isinstance(value, numpy.ndarray) or not value.flags.writeable:
        return value
    view = value.view()
    view.setflags(write=False)
    return view
