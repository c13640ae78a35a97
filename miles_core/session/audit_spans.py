"""Where the stored prompt of a turn and a fresh one differ, and in whose tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from miles_core.session.template.pieces import same_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from miles_core.session.tree import TurnNode

    Ids: TypeAlias = NDArray[np.int32]

Kind: TypeAlias = Literal["special_tokens", "other_text", "assistant_text"]

_TAIL = 8
"""Tokens of an answer near whose end its close is looked for."""
_COMPARED = 24
"""Tokens of an answer whose text is compared."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the comparison knows of a tokenizer: ids that no text may become, and the text of ids."""

    special: frozenset[int]
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True, eq=False)
class SpanDifference:
    """Tokens of ``node`` that a fresh render writes in another way, from token ``position`` of its conversation on."""

    node: TurnNode
    kind: Kind
    position: int
    stored: Ids
    fresh: Ids


def compare(node: TurnNode, fresh: Ids, vocabulary: Vocabulary) -> SpanDifference | None:
    """The last place where the stored prompt of a turn differs from ``fresh``; ``None`` if nowhere.

    Both end where the turn begins to speak, so they are compared from their ends on: whatever the template rewrites in
    earlier turns, the messages before this turn are held against what was stored for them.
    """
    stored = node.tokens()[: node.length - len(node.output_ids)]
    same = _same_end(stored, fresh)
    if same == len(stored) == len(fresh):
        return None
    if node.parent is None:
        return _in_context(node, 0, node.context_ids, fresh, vocabulary)
    start = len(stored) - len(node.context_ids)
    if same < len(node.context_ids):
        begins = _answer_end(node.parent.output_ids, node.context_ids, fresh, vocabulary)
        return _in_context(node, start, node.context_ids, fresh[begins:], vocabulary)
    if same == len(node.context_ids) and (found := _at_seam(node, start, fresh, vocabulary)) is not None:
        return found
    return _in_answer(node, stored, fresh, same)


def _in_context(node: TurnNode, start: int, stored: Ids, fresh: Ids, vocabulary: Vocabulary) -> SpanDifference:
    ahead = _same_start(stored, fresh)
    behind = min(_same_end(stored, fresh), min(len(stored), len(fresh)) - ahead)
    old, new = stored[ahead : len(stored) - behind], fresh[ahead : len(fresh) - behind]
    return SpanDifference(node, _kind(old, new, vocabulary), start + ahead, old, new)


def _at_seam(node: TurnNode, start: int, fresh: Ids, vocabulary: Vocabulary) -> SpanDifference | None:
    """What lacks or is too much between the parent's answer and this turn's messages, which are as they should be."""
    parent = node.parent
    assert parent is not None
    output, stop = parent.output_ids, parent.stop
    if stop is not None and len(node.context_ids) and node.context_ids[0] == stop:
        return SpanDifference(node, "special_tokens", start, node.context_ids[:1], node.context_ids[:0])
    head = fresh[: len(fresh) - len(node.context_ids)]
    near = head[-_TAIL:]
    for length in _lengths(output, at_least=1 if stop is not None else 2):
        if ends := _ends_of(output[-length:], near):
            lacking = near[ends[-1] :]
            return SpanDifference(node, _kind(output[:0], lacking, vocabulary), start, output[:0], lacking)
    return None  # the close that history shows is another one, for which the sampled stop stands in


def _in_answer(node: TurnNode, stored: Ids, fresh: Ids, same: int) -> SpanDifference | None:
    """The difference before the last ``same`` tokens, if that is one of an answer."""
    end = len(stored) - same
    ancestor = node.parent
    while ancestor is not None and ancestor.length - len(ancestor.output_ids) >= end:
        if ancestor.length - len(ancestor.output_ids) - len(ancestor.context_ids) < end:
            return None  # messages before it: they were held against the prompt of that turn
        ancestor = ancestor.parent
    if ancestor is None:
        return None
    start, until = ancestor.length - len(ancestor.output_ids), len(fresh) - same
    if not np.array_equal(fresh[:start], stored[:start]):  # where the answer begins is not known
        return SpanDifference(
            ancestor, "assistant_text", start, stored[start:end], fresh[max(0, until - end + start) : until]
        )
    shared = max(0, start - until)  # the last token before the answer may also be the last one that was dropped
    old, new = stored[start : end + shared], fresh[start : until + shared]
    ahead = _same_start(old, new)
    return SpanDifference(ancestor, "assistant_text", start + ahead, old[ahead:], new[ahead:])


def _answer_end(output: Ids, context: Ids, fresh: Ids, vocabulary: Vocabulary) -> int:
    """Where in a fresh prompt the answer ``output`` ends whose messages that follow were stored as ``context``.

    It ends in the same token, and of all such places before it stands most of the same text.
    """
    said = vocabulary.decode(output[-_COMPARED:].tolist())

    def alike(ids: Ids) -> list[tuple[int, int]]:
        ends = _ends_of(output[-1:], ids) if len(output) else []
        texts = [vocabulary.decode(ids[max(0, end - _COMPARED) : end].tolist()) for end in ends]
        return [(len(same_start(said[::-1], text[::-1])), end) for text, end in zip(texts, ends, strict=True)]

    found = alike(fresh)
    if not found:
        return max(0, len(fresh) - len(context))
    most = max(length for length, _ in found)
    again = sum(length == most for length, _ in alike(context))  # the messages that follow may say the same
    ends = [end for length, end in found if length == most]
    return ends[-1 - again] if again < len(ends) else ends[0]


def _lengths(output: Ids, *, at_least: int) -> Iterable[int]:
    length = min(_TAIL, len(output))
    while length >= at_least:
        yield length
        length //= 2


def _ends_of(part: Ids, ids: Ids) -> list[int]:
    """Where in ``ids`` an occurrence of ``part`` ends."""
    if len(part) > len(ids):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(part))
    return [int(at) + len(part) for at in np.flatnonzero((windows == part).all(axis=1))]


def _kind(stored: Ids, fresh: Ids, vocabulary: Vocabulary) -> Kind:
    old, new = ([token for token in ids.tolist() if token in vocabulary.special] for ids in (stored, fresh))
    return "special_tokens" if old != new else "other_text"


def _same_start(left: Ids, right: Ids) -> int:
    shorter = min(len(left), len(right))
    differing = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differing[0]) if len(differing) else shorter


def _same_end(left: Ids, right: Ids) -> int:
    return _same_start(left[::-1], right[::-1])
