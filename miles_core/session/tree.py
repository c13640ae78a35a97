"""A conversation as an append-only tree of turns that keeps every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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
    """Turns in the order they were stored; a turn is never changed."""

    def __init__(self) -> None:
        self.nodes: list[TurnNode] = []

    def deepest(self, messages: Sequence[Message]) -> tuple[TurnNode | None, tuple[Message, ...]]:
        """The deepest turn whose conversation ``messages`` continue, and the messages that are left.

        Of equal ones the latest wins. Something must be left: a request that ends in a stored answer asks for that
        turn again and becomes its sibling.
        """
        best: TurnNode | None = None
        best_length = 0
        wanted = list(messages)
        for node in self.nodes:
            path = list(node.messages())
            if best_length <= len(path) < len(wanted) and wanted[: len(path)] == path:
                best, best_length = node, len(path)
        return best, tuple(wanted[best_length:])

    def append(self, node: TurnNode) -> None:
        """Store a turn."""
        self.nodes.append(node)
