"""What is wrong with one row, before anybody has asked where it stands."""

from __future__ import annotations

import reprlib
from typing import Any

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    list: "list",
    tuple: "list",
    dict: "object",
}


class RowError(Exception):
    """One row is malformed; whoever catches it adds file and line, which take time to find."""

    def __init__(self, reason: str, *, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def kind_of(value: object) -> str:
    """The type of a value in a word, such as ``text`` or ``list``."""
    return _KINDS.get(type(value)) or type(value).__name__


def shown(value: Any) -> str:
    """Type and value, shortened, for an error: ``integer 5``."""
    if value is None:
        return "null"
    return "empty text" if value == "" else f"{kind_of(value)} {reprlib.repr(value)}"
