"""Calls that are one JSON object with the name, the arguments and perhaps an identifier."""

from __future__ import annotations

import json
from dataclasses import dataclass

from miles_core.session.parsing.forms import ReadCall
from miles_core.session.parsing.json_text import NotJsonError, after_space, members_at, value_at


@dataclass(frozen=True, slots=True)
class JsonObject:
    """``{name: "...", arguments: {...}, id: "..."}`` under the keys that the template writes.

    ``name`` is ``None`` where the call's name is itself the key of the arguments. ``inside`` are the keys of the
    objects around, outermost first, and ``constants`` the members that are always the same.
    """

    name: str | None
    arguments: str
    id: str | None = None
    inside: tuple[str, ...] = ()
    constants: tuple[tuple[str, str], ...] = ()

    def parse(self, text: str, at: int) -> ReadCall | None:
        """The call that begins at ``at``."""
        try:
            return self._parse(text, after_space(text, at))
        except NotJsonError:
            return None

    def _parse(self, text: str, at: int) -> ReadCall | None:
        members, end = members_at(text, at)
        outer = members
        for key in self.inside:
            if key not in members:
                return None
            members = members_at(text, members[key][0])[0]
        if self.name is None:
            return self._keyed(text, members, end)
        known = {self.name, self.arguments, self.id, *self.inside, *(key for key, _ in self.constants)}
        if self.name not in members or self.arguments not in members or not {*members, *outer} <= known:
            return None
        if any(key in outer and text[slice(*outer[key])] != value for key, value in self.constants):
            return None
        name, _ = value_at(text, members[self.name][0])
        arguments = _arguments(text[slice(*members[self.arguments])])
        identifier = self._identifier(text, {**members, **outer})
        if not isinstance(name, str) or not name or arguments is None:
            return None
        return ReadCall(name, arguments, identifier, end)

    def _keyed(self, text: str, members: dict[str, tuple[int, int]], end: int) -> ReadCall | None:
        if len(members) != 1:
            return None
        ((name, place),) = members.items()
        arguments = _arguments(text[slice(*place)])
        return ReadCall(name, arguments, None, end) if name and arguments is not None else None

    def _identifier(self, text: str, members: dict[str, tuple[int, int]]) -> str | None:
        if self.id is None or self.id not in members:
            return None
        value, _ = value_at(text, members[self.id][0])
        return str(value) if isinstance(value, str | int) and value != "" else None


def _arguments(text: str) -> str | None:
    """The arguments as the model wrote them: an object, or the text of one."""
    if text.startswith("{"):
        return text
    try:
        inside = json.loads(text)
        return inside if isinstance(inside, str) and isinstance(json.loads(inside), dict) else None
    except (ValueError, RecursionError):
        return None
