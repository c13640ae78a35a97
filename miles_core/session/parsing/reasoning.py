"""What a turn thought, apart from what it said."""

from __future__ import annotations

from dataclasses import dataclass

from miles_core.session.parsing.fixed import without_end, without_start


@dataclass(frozen=True)
class Reasoning:
    """``open lead ... trail close gap``, as a :class:`ReasoningParser`.

    ``opened`` says that the prompt has opened it already, and with ``lead`` only as far as the prompt lacks it.
    ``said_open`` and ``said_close`` stand around what is said after it, ``before`` before what is said without
    reasoning. All but the marks is white space.
    """

    open: str
    close: str
    lead: str = ""
    trail: str = ""
    gap: str = ""
    opened: bool = False
    said_open: str = ""
    said_close: str = ""
    before: str = ""

    @property
    def starts(self) -> tuple[str, ...]:
        """What may begin a text and be no content: the mark that opens, or one that closes at once."""
        return tuple(mark for mark in (self.open, self.close, self.said_open) if mark)

    @property
    def ends(self) -> str:
        """What ends the reasoning."""
        return self.close

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may stand in the rest of a text and are no content."""
        return tuple(mark for mark in (self.said_open, self.said_close) if mark)

    def __call__(self, text: str, /) -> tuple[str | None, str]:
        """The reasoning and the rest; all is reasoning if it is open and nothing closes it."""
        inside = text.lstrip()
        if self.open and inside.startswith(self.open):
            inside = inside[len(self.open) :]
        elif self.close and inside.startswith(self.close):  # a turn that does not think
            return None, self._said(without_start(inside[len(self.close) :], self.gap))
        elif self.opened:
            inside = text
        else:
            return None, self._said(without_start(text, self.before))
        thought, closed, rest = inside.partition(self.close)
        thought = without_start(thought, self.lead)
        if closed:
            return without_end(thought, self.trail) or None, self._said(without_start(rest, self.gap))
        return thought, ""

    def _said(self, text: str) -> str:
        """The rest without the marks around it."""
        if not self.said_open:
            return text
        stripped = text.lstrip()
        if not stripped.startswith(self.said_open):
            return text
        inside, closed, after = stripped.removeprefix(self.said_open).partition(self.said_close)
        return inside + after.lstrip() if closed else inside
