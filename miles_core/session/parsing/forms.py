"""What the forms of calls have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

KEY = "\0"
"""Stands for the name of an argument where a fixed text holds it again."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call that was read: its name, its arguments as JSON text, its identifier if one is written, and its end."""

    name: str
    arguments: str
    id: str | None
    end: int


class CallForm(Protocol):
    """How one call is written, between the fixed pieces around it."""

    def parse(self, text: str, at: int) -> ReadCall | None:
        """The call that begins at ``at``; ``None`` if none does."""


@dataclass(frozen=True)
class Found:
    """A form, and where one of the calls stands in it; ``taken`` is what the form reads of the text behind it.

    ``key`` is the argument's name where the text behind may hold it again.
    """

    form: CallForm
    start: int
    end: int
    taken: str = ""
    key: str = ""

    def after(self, body: str) -> str:
        """What is behind the call."""
        return body[self.end :].replace(self.key, KEY, 1) if self.key else body[self.end :]

    def between(self, body: str, other: Found) -> str:
        """What is between this call and the next."""
        text = body[self.end : other.start]
        return text.replace(self.key, KEY, 1) if self.key else text
