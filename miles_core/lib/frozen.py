"""Read-only copies of what the core hands to plugin code that only looks."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping
from functools import cache
from operator import is_
from typing import Any

from miles_core.types.freeze import FrozenDict

_PLAIN = (str, int, float, bytes)


def frozen(value: Any) -> Any:
    """A deeply read-only copy; what is read-only already is shared, not copied.

    Mappings become :class:`~miles_core.types.freeze.FrozenDict`, lists tuples, sets frozensets, numpy arrays read-only
    views; dataclasses are copied where a field of theirs has to be. Other objects stay as they are.
    """
    if value is None or isinstance(value, _PLAIN):
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
    # Not dataclasses.replace: what was validated once need not be validated again.
    copied = copy.copy(value)
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
