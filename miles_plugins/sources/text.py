"""Whether the texts inside a row are text, and how deep it is nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_plugins.sources.row_error import RowError

MAX_DEPTH = 64
"""Levels of nesting; more would exhaust the stack of whoever walks through a task later."""


def check_text(key: str, value: Any, depth: int = 0) -> None:
    """Refuse lone surrogates, which no tokenizer and no file takes, and bottomless nesting.

    Raises:
        RowError: naming ``key``.
    """
    if isinstance(value, str):
        if not value.isascii() and not _encodes(value):
            raise RowError(f"`{key}` holds a lone surrogate, which is no text", remedy="Remove it.")
    elif isinstance(value, Mapping | list | tuple):
        if depth == MAX_DEPTH:
            raise RowError(f"`{key}` is nested more than {MAX_DEPTH} levels deep", remedy="Flatten it.")
        if isinstance(value, Mapping):
            check_text(key, list(value), depth)
            value = value.values()
        for inner in value:
            check_text(key, inner, depth + 1)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
