"""Read-only copies of JSON-like data that many share and nobody owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A ``dict`` that refuses changes; it pickles, and dumps as JSON, as a ``dict`` does."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this mapping is shared and read-only; change a copy: `{**mapping, key: value}`")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        # the default would fill an empty one key by key
        return FrozenDict, (dict(self),)


def freeze(value: Any) -> Any:
    """A deeply read-only copy: mappings become :class:`FrozenDict`, lists tuples, sets frozensets; the rest stays."""
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: freeze(inner) for key, inner in value.items()})
    if isinstance(value, list) or type(value) is tuple:
        return tuple(freeze(inner) for inner in value)
    if isinstance(value, set):
        return frozenset(value)
    return value
