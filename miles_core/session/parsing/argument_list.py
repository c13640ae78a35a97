"""Calls that are written as in a program: ``name(key="value", other=7)``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from miles_core.session.parsing.fixed import NAME
from miles_core.session.parsing.forms import ReadCall
from miles_core.session.parsing.json_text import NotJsonError, after_space
from miles_core.session.parsing.values import Values


@dataclass(frozen=True)
class ArgumentList:
    """``NAME open KEY assign VALUE, KEY assign VALUE close``; ``quote`` stands around texts."""

    open: str
    assign: str
    close: str
    quote: str

    @cached_property
    def _name(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{NAME}\s*{re.escape(self.open)}")

    @cached_property
    def _key(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?P<key>[^\s\"'=:,(){{}}]+)\s*{re.escape(self.assign)}")

    def parse(self, text: str, at: int) -> ReadCall | None:
        """The call that begins at ``at``."""
        named = self._name.match(text, at)
        if named is None:
            return None
        try:
            members, end = self._members(text, after_space(text, named.end()))
            arguments = json.dumps(members, ensure_ascii=False, allow_nan=False)
        except (NotJsonError, RecursionError, ValueError):
            return None
        return ReadCall(named["name"], arguments, None, end)

    def _members(self, text: str, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while not text.startswith(self.close, at):
            key = self._key.match(text, at)
            if key is None or key["key"] in found:
                raise NotJsonError("no argument")
            found[key["key"]], at = Values(self.quote).value(text, key.end())
            at = after_space(text, at)
            if text.startswith(",", at):
                at = after_space(text, at + 1)
            elif not text.startswith(self.close, at):
                raise NotJsonError("no end of the arguments")
        return found, at + len(self.close)
