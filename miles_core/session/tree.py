"""A conversation as an append-only tree of turns that keeps every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.session.matching import ask_match, exact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.sessions import MessageMatch
    from miles_core.types import Message, SamplingParams, VersionSpan


@dataclass(frozen=True, eq=False)
class TurnNode:
    """One stored turn: what was appended, what was generated, and the tokens of both.

    ``versions`` are spans over ``output_ids``. ``routing`` holds the rows that this turn added to its parent's,
    ``[rows, MoE layers, top_k]``, ``None`` where routing is not recorded; ``rows`` counts those of the whole path.
    """

    parent: TurnNode | None
    appended: tuple[Message, ...]
    response: Message
    context_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: tuple[VersionSpan, ...]
    sampling: SamplingParams
    stop: int | None
    routing: NDArray[Any] | None
    length: int = field(init=False)
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        before = self.parent.length if self.parent else 0
        object.__setattr__(self, "length", before + len(self.context_ids) + len(self.output_ids))
        rows = self.parent.rows if self.parent else 0
        object.__setattr__(self, "rows", rows + (0 if self.routing is None else len(self.routing)))

    def path(self) -> list[TurnNode]:
        """The turns from the root to this one."""
        nodes: list[TurnNode] = []
        node: TurnNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def messages(self) -> Iterator[Message]:
        """The conversation up to and with this turn."""
        for node in self.path():
            yield from node.appended
            yield node.response

    def tokens(self) -> NDArray[np.int32]:
        """All ids up to and with this turn, ``[length]``."""
        parts = [part for node in self.path() for part in (node.context_ids, node.output_ids)]
        return np.concatenate(parts)


class SessionTree:
    """Turns in the order they were stored; a turn is never changed.

    ``match`` says whether a message that is given stands for a stored one; equal ones always do.
    """

    def __init__(self, match: MessageMatch = exact) -> None:
        self.nodes: list[TurnNode] = []
        self._match = match

    def deepest(self, messages: Sequence[Message]) -> tuple[TurnNode | None, tuple[Message, ...]]:
        """The deepest turn whose conversation ``messages`` continue, and the messages that are left.

        Of equally deep ones, one whose messages are equal wins over one whose messages only match, then the latest.
        Something must be left: a request that ends in a stored answer asks for that turn again and becomes its sibling.

        Raises:
            SessionError: if the match function fails.
        """
        best, best_rank = None, (0, False)
        for node in self.nodes:
            path = list(node.messages())
            given = messages[: len(path)]
            if len(path) >= len(messages) or len(path) < best_rank[0]:
                continue
            equal = list(given) == path
            rank = (len(path), equal)
            if rank >= best_rank and (equal or all(map(self._matches, path, given))):
                best, best_rank = node, rank
        return best, tuple(messages[best_rank[0] :])

    def append(self, node: TurnNode) -> None:
        """Store a turn."""
        self.nodes.append(node)

    def _matches(self, stored: Message, given: Message) -> bool:
        return stored == given or ask_match(self._match, stored, given)
