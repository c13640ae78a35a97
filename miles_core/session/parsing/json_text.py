"""JSON inside other text, strictly: no constants such as NaN, and nothing is mended."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\n\r]*")


class NotJsonError(Exception):
    """The text is not what was looked for."""


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant)


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where it ends.

    Raises:
        NotJsonError: if none does.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def members_at(text: str, at: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Where the values of the object that begins at ``at`` stand, by key, and where it ends.

    Raises:
        NotJsonError: if no object does, or if it holds a key twice.
    """
    if not text.startswith("{", at):
        raise NotJsonError("no object")
    found: dict[str, tuple[int, int]] = {}
    at = after_space(text, at + 1)
    if text.startswith("}", at):
        return found, at + 1
    while True:
        key, at = value_at(text, at)
        at = after_space(text, at)
        if not isinstance(key, str) or key in found or not text.startswith(":", at):
            raise NotJsonError("no member of an object")
        start = after_space(text, at + 1)
        _, end = value_at(text, start)
        found[key] = (start, end)
        at = after_space(text, end)
        if text.startswith("}", at):
            return found, at + 1
        if not text.startswith(",", at):
            raise NotJsonError("no end of an object")
        at = after_space(text, at + 1)


def after_space(text: str, at: int) -> int:
    """Where what is no white space goes on."""
    found = _SPACE.match(text, at)
    return found.end() if found else at
