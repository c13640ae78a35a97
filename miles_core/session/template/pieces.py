"""Texts as pieces, where a special token is one piece: ``<|return|>`` and ``<|end|>`` have no common start."""

from __future__ import annotations

import re

_PIECE = re.compile(r"<[^<>\s]+>|\[[^\[\]<>\s]+[\]\[]|.", re.DOTALL)
_LEAST_SHARED = 3


def pieces(text: str) -> list[str]:
    """The pieces of a text: tokens in brackets whole, everything else by character."""
    return _PIECE.findall(text)


def special(piece: str) -> bool:
    """Whether a piece is written like a special token."""
    return len(piece) > 1


def common_start(*texts: str) -> list[str]:
    """The pieces with which all texts start."""
    common: list[str] = []
    for column in zip(*map(pieces, texts), strict=False):
        if any(piece != column[0] for piece in column):
            break
        common.append(column[0])
    return common


def common_end(*texts: str) -> list[str]:
    """The pieces with which all texts end."""
    common: list[str] = []
    for column in zip(*(reversed(pieces(text)) for text in texts), strict=False):
        if any(piece != column[0] for piece in column):
            break
        common.append(column[0])
    return common[::-1]


def same_start(left: str, right: str) -> str:
    """The characters with which both texts start."""
    shorter = min(len(left), len(right))
    return left[: next((at for at in range(shorter) if left[at] != right[at]), shorter)]


def close_length(shared: str) -> int:
    """Length of the close with which a text starts: up to its first special token, or 0 if it has none."""
    length = 0
    for piece in pieces(shared):
        length += len(piece)
        if special(piece):
            return length
    return 0


def first_special(text: str) -> int:
    """Where the first special token of a text stands, or 0."""
    length = 0
    for piece in pieces(text):
        if special(piece):
            return length
        length += len(piece)
    return 0


def aligned_length(shared: str, end: str, stop: str) -> int | None:
    """Length of what ``shared`` has where ``end`` has ``stop``: the same text before it, then one special token."""
    before, found, _ = end.partition(stop)
    if not found or not shared.startswith(before):
        return None
    rest = pieces(shared[len(before) :])
    return len(before) + len(rest[0]) if rest and special(rest[0]) else None


def said_length(spoken: str, head: str) -> int:
    """Length of the start of ``head``, up to a special token, that ``spoken`` ends with already."""
    length = best = 0
    for piece in pieces(head):
        length += len(piece)
        if special(piece) and spoken.endswith(head[:length]):
            best = length
    return best


def spoken_length(spoken: str, head: str) -> int:
    """Where in ``head`` the turn stopped: the place before which both share the longest text."""
    best = (0, 0)
    for end in range(1, len(head) + 1):
        length = 0
        while length < min(end, len(spoken)) and spoken[-1 - length] == head[end - 1 - length]:
            length += 1
        best = max(best, (length, end), key=lambda pair: pair[0])
    length, end = best
    return end if length >= _LEAST_SHARED or (length == end and length >= _LEAST_SHARED - 1) else 0
