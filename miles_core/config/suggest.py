"""Suggestions for mistyped names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``, letter case aside; ``None`` if none is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """``Did you mean 'x'?``, or ``None`` if nothing is close."""
    match = nearest(name, known)
    return f"Did you mean {match!r}?" if match else None


def listed(names: Iterable[str], most: int = 50) -> str:
    """The names with commas, or ``none``; of more than ``most`` only the first, since nobody reads hundreds."""
    known = list(names)
    more = len(known) - most
    return (", ".join(known[:most]) or "none") + (f", and {more} more" if more > 0 else "")


def unknown_key(path: str, key: str, known: Iterable[str]) -> str:
    """One line about the unknown ``key`` at the dotted ``path``: the nearest known key and all of them."""
    names = list(known)
    match = nearest(key, names)
    hint = f"did you mean {match!r}? " if match else ""
    return f"{path}: unknown key; {hint}known keys: {', '.join(names) or 'none'}"
