"""Values as programs write them: JSON, Python, or with marks of their own around texts."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from miles_core.session.parsing.json_text import NotJsonError, after_space, value_at

_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_WORD = re.compile(r"[^\s,:()\[\]{}'\"<]+")
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")


def json_or_python(text: str, *, python: bool) -> str | None:
    """The JSON text of a value that is JSON, or of a Python literal; ``None`` if it is neither."""
    stripped = text.strip()
    try:
        _, end = value_at(stripped, 0)
        if end == len(stripped):
            return stripped
    except NotJsonError:
        pass
    if not python:
        return None
    try:
        return json.dumps(ast.literal_eval(stripped), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Values:
    """Reads values; ``quote`` stands around texts, beside the quotes of Python and JSON."""

    quote: str

    def value(self, text: str, at: int) -> tuple[Any, int]:
        """The value that begins at ``at``, and where it ends.

        Raises:
            NotJsonError: if none does.
        """
        at = after_space(text, at)
        if len(self.quote) > 1 and text.startswith(self.quote, at):
            end = text.find(self.quote, at + len(self.quote))
            if end < 0:
                raise NotJsonError("an open text")
            return text[at + len(self.quote) : end], end + len(self.quote)
        if text.startswith(("'", '"'), at):
            return _string(text, at)
        if text.startswith("[", at):
            return self._list(text, at + 1)
        if text.startswith("{", at):
            return self._object(text, at + 1)
        return _word(text, at)

    def _list(self, text: str, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = after_space(text, at)
        while not text.startswith("]", at):
            item, at = self.value(text, at)
            found.append(item)
            at = _next(text, at, "]")
        return found, at + 1

    def _object(self, text: str, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = after_space(text, at)
        while not text.startswith("}", at):
            quoted = text.startswith(("'", '"', self.quote), at)
            bare = None if quoted else _WORD.match(text, at)
            key, at = (bare[0], bare.end()) if bare else self.value(text, at)
            at = after_space(text, at)
            if not isinstance(key, str) or key in found or not text.startswith(":", at):
                raise NotJsonError("no member of an object")
            found[key], at = self.value(text, at + 1)
            at = _next(text, at, "}")
        return found, at + 1


def _next(text: str, at: int, close: str) -> int:
    at = after_space(text, at)
    if text.startswith(",", at):
        return after_space(text, at + 1)
    if not text.startswith(close, at):
        raise NotJsonError(f"no {close}")
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise NotJsonError("no text")
    try:
        if found[0].startswith('"'):
            return str(value_at(found[0], 0)[0]), found.end()
    except NotJsonError:
        pass
    try:
        return str(ast.literal_eval(found[0])), found.end()
    except (ValueError, SyntaxError) as error:
        raise NotJsonError("no text") from error


def _word(text: str, at: int) -> tuple[Any, int]:
    found = _WORD.match(text, at)
    if found is None:
        raise NotJsonError("no value")
    if found[0] in _WORDS:
        return _WORDS[found[0]], found.end()
    value, end = value_at(text, at)
    if end != found.end():
        raise NotJsonError("no value")
    return value, end
