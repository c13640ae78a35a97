"""One cause out of the exception groups that task groups raise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from miles_core.errors import MilesError, leaves_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def single_error() -> Iterator[None]:
    """Raise one exception instead of a group: the first of ours, else the first; the group stays its context."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(leaves_of(group))
        raise next((leaf for leaf in leaves if isinstance(leaf, MilesError)), leaves[0]) from group
