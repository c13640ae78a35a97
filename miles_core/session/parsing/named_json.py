"""Calls that are a name, fixed pieces, and the arguments as a JSON object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from miles_core.session.parsing.forms import ReadCall
from miles_core.session.parsing.json_text import NotJsonError, members_at

_NAMED = re.compile(r"(?:[A-Za-z]+\.)?(?P<name>.+?)(?::\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedJson:
    """``NAME marker {...}``: ``intro`` is the expression of all before the arguments, with the groups name, id, whole.

    ``whole`` is a name that is written with a number, such as ``functions.NAME:0``: the identifier of the call, with
    ``word`` before it. A template that writes only identifiers has no name; then it is taken from an identifier of
    that kind.
    """

    intro: re.Pattern[str]
    word: str = ""

    def parse(self, text: str, at: int) -> ReadCall | None:
        """The call that begins at ``at``."""
        found = self.intro.match(text, at)
        if found is None:
            return None
        groups = found.groupdict()
        identifier = self.word + groups["whole"] if groups.get("whole") else groups.get("id")
        name = groups.get("name") or _name_in(identifier or "")
        try:
            _, end = members_at(text, found.end())
        except NotJsonError:
            return None
        return ReadCall(name, text[found.end() : end], identifier, end) if name else None


def _name_in(identifier: str) -> str:
    found = _NAMED.fullmatch(identifier)
    return found["name"] if found else ""
