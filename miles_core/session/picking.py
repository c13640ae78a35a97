"""``[session] pick``: the stored turn whose conversation becomes the sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.lib.error_text import error_text, value_text
from miles_core.plugins.functions.resolve import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.sessions import StoredTurn, TurnPick
    from miles_core.session.tree import TurnNode


def last(turns: Sequence[StoredTurn], /) -> StoredTurn:
    """The turn that was stored last."""
    return turns[-1]


def longest(turns: Sequence[StoredTurn], /) -> StoredTurn:
    """The turn whose conversation has the most tokens; of equal ones the latest."""
    return max(reversed(turns), key=lambda turn: turn.length)


PICKS: dict[str, TurnPick] = {"last": last, "longest": longest}
"""The built-in ones, by name."""


def ask_pick(pick: TurnPick, nodes: Sequence[TurnNode]) -> TurnNode:
    """The chosen one of ``nodes``, of which there is at least one.

    Raises:
        SessionError: if the function raises, or returns none of them.
    """
    try:
        choice: object = pick(tuple(nodes))
    except (Exception, SystemExit) as error:
        raise SessionError(f"session.pick: {label_of(pick)} raised {error_text(error)}") from error
    for node in nodes:
        if node is choice:
            return node
    raise SessionError(
        f"session.pick: {label_of(pick)} must return one of the turns that it gets; got {value_text(choice)}"
    )
