"""``[session] pick``: the stored turns whose conversations become samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.lib.error_text import error_text, value_text
from miles_core.plugins.functions.resolve import label_of

if TYPE_CHECKING:
    from miles_core.kinds.sessions import StoredTurn, TurnPick
    from miles_core.session.tree import TurnNode


def last(turns: Sequence[StoredTurn], /) -> StoredTurn:
    """The turn that was stored last."""
    return turns[-1]


def longest(turns: Sequence[StoredTurn], /) -> StoredTurn:
    """The turn whose conversation has the most tokens; of equal ones the latest."""
    return max(reversed(turns), key=lambda turn: turn.length)


def leaves(turns: Sequence[StoredTurn], /) -> Sequence[StoredTurn]:
    """The turns that nothing follows, less those in whose place another counts.

    Of turns that answer the same request (retries, or the choices of one request) those count that were continued, or
    else the latest.
    """
    continued = {id(turn.parent) for turn in turns if turn.parent is not None}
    siblings: dict[int, list[list[StoredTurn]]] = {}
    for turn in turns:
        requests = siblings.setdefault(id(turn.parent), [])
        same = next((answers for answers in requests if _asks_the_same(answers[0], turn)), None)
        if same is None:
            requests.append([turn])
        else:
            same.append(turn)
    answered = [answers for requests in siblings.values() for answers in requests]
    ends = {id(answers[-1]) for answers in answered if not any(id(turn) in continued for turn in answers)}
    return [turn for turn in turns if id(turn) in ends]


def _asks_the_same(first: StoredTurn, second: StoredTurn) -> bool:
    return first.appended == second.appended and first.tools == second.tools


PICKS: dict[str, TurnPick] = {"leaves": leaves, "last": last, "longest": longest}
"""The built-in ones, by name."""


def ask_pick(pick: TurnPick, nodes: Sequence[TurnNode]) -> list[TurnNode]:
    """The chosen ones of ``nodes``, of which there is at least one, each once.

    Raises:
        SessionError: if the function raises, or returns others than these.
    """
    try:
        choice: object = pick(tuple(nodes))
    except (Exception, SystemExit) as error:
        raise SessionError(f"session.pick: {label_of(pick)} raised {error_text(error)}") from error
    known = {id(node): node for node in nodes}
    chosen = [id(turn) for turn in (choice if isinstance(choice, Sequence) else [choice])]
    if not chosen or not known.keys() >= set(chosen):
        raise SessionError(
            f"session.pick: {label_of(pick)} must return one or some of the turns that it gets; "
            f"got {value_text(choice)}"
        )
    return [known[turn] for turn in dict.fromkeys(chosen)]
