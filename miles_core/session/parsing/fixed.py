"""Fixed pieces of a syntax: texts that must be there, with white space as the model likes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from miles_core.session.template.pieces import pieces, special

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = r"(?P<name>[^\s<>\[\]{}()\"',|=]+?)"
"""A name or an identifier, up to the fixed piece that follows."""


def fixed(text: str) -> str:
    """The regular expression of a fixed text; white space is free around it and between its markers."""
    parts: list[str] = [r"\s*"]
    for piece in pieces(text.strip()):
        if piece.isspace():
            _free(parts)
        elif special(piece):
            _free(parts)
            parts.append(re.escape(piece))
            _free(parts)
        else:
            parts.append(re.escape(piece))
    _free(parts)
    return "".join(parts)


def _free(parts: list[str]) -> None:
    if parts[-1] != r"\s*":  # twice in a row is slow and means the same
        parts.append(r"\s*")


def first_marker(text: str) -> str:
    """The text with which a fixed text begins: its first marker, or the word before the first marker or space."""
    found = ""
    for piece in pieces(text.strip()):
        ends = special(piece) or piece.isspace()
        if ends and any(letter.isalnum() for letter in found):
            break
        if piece.isspace():
            break
        found += piece
        if ends:
            break
    return found


def held_back(part: str, marks: Iterable[str], text: str) -> int:
    """Where the first of ``marks`` stands in a part of a text, or may stand once the text goes on; or its length."""
    cut = len(part)
    for mark in marks:
        if (at := part.find(mark)) >= 0:
            cut = min(cut, at)
        elif (length := _overlap(text, mark)) and part.endswith(text[-length:]):
            cut = min(cut, len(part) - length)
    return cut


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of a text that a mark begins with."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-n:])), 0)


def without_start(text: str, start: str) -> str:
    """A text without as much of ``start`` as it begins with."""
    length = next((n for n in range(len(start), 0, -1) if text.startswith(start[:n])), 0)
    return text[length:]


def without_end(text: str, end: str) -> str:
    """A text without as much of ``end`` as it ends with."""
    length = next((n for n in range(len(end), 0, -1) if text.endswith(end[-n:])), 0)
    return text[: len(text) - length]
