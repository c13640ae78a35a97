"""Calls that are a name and one element per argument."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from miles_core.session.parsing.fixed import NAME, fixed, without_end, without_start
from miles_core.session.parsing.forms import KEY, ReadCall
from miles_core.session.parsing.values import json_or_python


@dataclass(frozen=True)
class Elements:
    """``NAME mid`` and per argument ``open KEY middle VALUE close``, of which ``close`` may hold the key again.

    Text stands bare and other values as JSON, or as Python writes them if ``python``; with ``quoted`` all are JSON.
    With ``item`` lists and objects are elements too, and those of a list have that key.
    """

    mid: str
    open: str
    middle: str
    close: str
    python: bool = False
    quoted: bool = False
    item: str = ""

    @cached_property
    def _name(self) -> re.Pattern[str]:
        after = fixed(self.mid) if self.mid.strip() else rf"(?=\s|{re.escape(self.open.strip()[:1])}|<|$)\s*"
        return re.compile(rf"\s*{NAME}{after}")

    @cached_property
    def _start(self) -> re.Pattern[str]:
        middle = fixed(self.middle).removesuffix(r"\s*")  # what follows belongs to the value
        return re.compile(rf"{fixed(self.open)}(?P<key>[^<>\s/][^<>\s]*?){middle}")

    def parse(self, text: str, at: int) -> ReadCall | None:
        """The call that begins at ``at``."""
        named = self._name.match(text, at)
        try:
            found = self._members(text, named.end()) if named else None
        except RecursionError:
            return None
        if named is None or found is None or len(dict(found[0])) < len(found[0]):
            return None
        return ReadCall(named["name"], _object(found[0]), None, found[1])

    def _members(self, text: str, at: int) -> tuple[list[tuple[str, str]], int] | None:
        """The elements from ``at`` on, by key with their values as JSON text, and where they end."""
        members: list[tuple[str, str]] = []
        while (start := self._start.match(text, at)) is not None:
            close = self.close.replace(KEY, start["key"])
            found = self._value(text, start.end(), close)
            if found is None:
                return None
            members.append((start["key"], found[0]))
            at = found[1]
        return members, at

    def _value(self, text: str, at: int, close: str) -> tuple[str, int] | None:
        """The JSON text of the value that begins at ``at``, and where its element ends."""
        if self.item and self._start.match(text, at):
            found = self._members(text, at)
            inside = None if found is None else self._nested(found[0])
            if found is None or inside is None or not text.startswith(close.strip(), found[1]):
                return None
            return inside, found[1] + len(close.strip())
        end = text.find(close.strip(), at)
        value = None if end < 0 else self._plain(text[at:end], close)
        return None if value is None else (value, end + len(close.strip()))

    def _nested(self, members: list[tuple[str, str]]) -> str | None:
        """A list or an object; ``None`` if a key comes twice."""
        if all(key == self.item for key, _ in members):
            return f"[{', '.join(value for _, value in members)}]"
        return _object(members) if len(dict(members)) == len(members) else None

    def _plain(self, text: str, close: str) -> str | None:
        before = self.middle[len(self.middle.rstrip()) :]
        text = without_end(without_start(text, before), close[: len(close) - len(close.lstrip())])
        found = json_or_python(text, python=self.python)
        if self.quoted:
            return found
        if found is None or found.startswith('"'):  # text stands bare: quotes are a part of it
            return json.dumps(text, ensure_ascii=False)
        return found


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members) + "}"
