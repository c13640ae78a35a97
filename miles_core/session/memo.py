"""Results kept for texts that come again, within a bound on their size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Keeps what was made last, of keys and values that together weigh at most ``max_weight``.

    For pure functions only, and for one thread at a time.
    """

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._weight = 0
        self._entries: dict[Hashable, tuple[Value, int]] = {}

    def get(self, key: Hashable, make: Callable[[], Value], weigh: Callable[[Value], int]) -> Value:
        """The value of ``key``, made if it is not there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            value = make()
            entry = value, weigh(value)
            self._weight += entry[1]
        self._entries[key] = entry  # now the youngest
        while self._weight > self._max_weight:
            self._weight -= self._entries.pop(next(iter(self._entries)))[1]
        return entry[0]
