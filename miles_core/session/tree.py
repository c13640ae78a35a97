"""Conversations as an append-only tree of turns that keeps every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.session.matching import ask_match, exact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.sessions import MessageMatch, Tools
    from miles_core.types import FinishReason, Message, SamplingParams, VersionSpan


@dataclass(frozen=True, eq=False)
class TurnNode:
    """One stored turn: what was appended, what was generated, and the tokens of both.

    ``versions`` are spans over ``output_ids``. ``routing`` holds the rows that this turn added to its parent's,
    ``[rows, MoE layers, top_k]``, ``None`` where routing is not recorded. ``length``, ``rows`` and ``count`` are
    tokens, routing rows and messages of the whole path.
    """

    parent: TurnNode | None
    tools: tuple[Mapping[str, Any], ...]
    appended: tuple[Message, ...]
    response: Message
    context_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: tuple[VersionSpan, ...]
    sampling: SamplingParams
    stop: int | None
    finish_reason: FinishReason
    cached_tokens: int
    routing: NDArray[Any] | None
    length: int = field(init=False)
    rows: int = field(init=False)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        parent = self.parent
        before = (parent.length, parent.rows, parent.count) if parent else (0, 0, 0)
        own = len(self.context_ids) + len(self.output_ids), _rows(self.routing), len(self.appended) + 1
        for name, start, added in zip(("length", "rows", "count"), before, own, strict=True):
            object.__setattr__(self, name, start + added)

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

    ``match`` says whether a message that is given stands for a stored one; equal ones always do. ``tokens`` counts what
    is kept, which grows with what was said and never with how often it was sent.
    """

    def __init__(self, match: MessageMatch = exact) -> None:
        self.nodes: list[TurnNode] = []
        self.tokens = 0
        self._match = match
        self._children: dict[TurnNode | None, list[TurnNode]] = {}
        self._order: dict[TurnNode, int] = {}

    def deepest(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[TurnNode | None, tuple[Message, ...]]:
        """The deepest turn with these tools whose conversation ``messages`` continue, and the messages that are left.

        Of equally deep ones, one whose messages are equal wins over one whose messages only match, then the latest.
        Something must be left: a request that ends in a stored answer asks for that turn again and becomes its sibling.

        Raises:
            SessionError: if the match function fails.
        """
        best, best_rank = None, (0, False, 0)
        candidates = [(node, True) for node in self._children.get(None, ()) if node.tools == tuple(tools)]
        while candidates:
            node, equal = candidates.pop()
            same = self._continues(node, messages)
            if same is None:
                continue
            rank = (node.count, equal and same, self._order[node])
            if rank > best_rank:
                best, best_rank = node, rank
            candidates += [(child, rank[1]) for child in self._children.get(node, ())]
        return best, tuple(messages[best_rank[0] :])

    def append(self, node: TurnNode) -> None:
        """Store a turn."""
        self._order[node] = len(self.nodes)
        self.nodes.append(node)
        self._children.setdefault(node.parent, []).append(node)
        self.tokens += len(node.context_ids) + len(node.output_ids)

    def _continues(self, node: TurnNode, messages: Sequence[Message]) -> bool | None:
        """Whether the node's own messages stand at their place: equal (true), matching (false), or not (``None``)."""
        if node.count >= len(messages):
            return None
        own = (*node.appended, node.response)
        given = messages[node.count - len(own) : node.count]
        if all(a == b for a, b in zip(own, given, strict=True)):
            return True
        matching = all(a == b or ask_match(self._match, a, b) for a, b in zip(own, given, strict=True))
        return False if matching else None


def _rows(routing: NDArray[Any] | None) -> int:
    return 0 if routing is None else len(routing)
