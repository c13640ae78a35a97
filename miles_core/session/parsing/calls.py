"""The calls of a turn: one form, and the fixed pieces before, between and after."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from miles_core.session.parsing.fixed import first_marker, fixed, without_end, without_start
from miles_core.session.parsing.json_object import JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.parsing.forms import CallForm, ReadCall


@dataclass(frozen=True)
class Calls:
    """``open (head CALL tail) separator (head CALL tail) close``, as a :class:`ToolCallParser`.

    ``gap`` is the white space between content and calls, ``gap_after`` between calls and content. ``ending`` is what
    the end of a text may lack of the fixed pieces: a stop token, or a close that a lone call does not have.
    """

    form: CallForm
    head: str = ""
    tail: str = ""
    separator: str = ""
    open: str = ""
    close: str = ""
    gap: str = ""
    gap_after: str = ""
    ending: str = ""

    @property
    def whole(self) -> bool:
        """Whether calls can only be the whole text, since no marker tells where they begin."""
        return not any(letter.isalpha() for letter in self.open + ("" if self.open else self.head))

    @property
    def starts(self) -> tuple[str, ...]:
        """Where a call may begin; an empty text where anything may be one."""
        return (first_marker(self.open) or first_marker(self.head) or self._bare_start,)

    @property
    def _bare_start(self) -> str:
        return "{" if isinstance(self.form, JsonObject) else ""

    @cached_property
    def _begin(self) -> re.Pattern[str]:
        text = self.open.strip() or self.head.strip()
        start = first_marker(text)
        return re.compile(re.escape(start) + fixed(text[len(start) :]))

    @cached_property
    def _pieces(self) -> dict[str, re.Pattern[str]]:
        return {name: re.compile(fixed(getattr(self, name))) for name in ("open", "head", "tail", "separator", "close")}

    def __call__(self, text: str, /) -> tuple[str, tuple[Mapping[str, Any], ...]]:
        """The text beside the calls, and the calls; if one of them cannot be read, the whole text and none."""
        found = self._read(text)
        if found is None and self.ending:
            found = self._read(text.rstrip() + self.ending)
        return (text, ()) if found is None else found

    def _read(self, text: str) -> tuple[str, tuple[Mapping[str, Any], ...]] | None:
        """The same, ``None`` if a call cannot be read."""
        calls: list[ReadCall] = []
        beside: list[str] = []
        at = 0
        while (start := self._start(text, at)) is not None:
            end = self._section(text, start, calls)
            if end is None:
                return None
            beside.append(text[at:start])
            at = end
        if not calls or (self.whole and text[at:].strip()):
            return text, ()
        before = without_end(beside[0], self.gap)
        after = [without_start(each, self.gap_after) for each in (*beside[1:], text[at:])]
        content = "".join(each for each in (before, *after) if each.strip())
        return content, tuple(map(_call, calls))

    def _start(self, text: str, at: int) -> int | None:
        if self.whole:
            start = len(text) - len(text.lstrip())
            return start if at == 0 and start < len(text) and self._begin.match(text, start) else None
        found = self._begin.search(text, at)
        return found.start() if found else None

    def _section(self, text: str, at: int, calls: list[ReadCall]) -> int | None:
        """Reads calls up to the close; where they end."""
        at = self._after("open", text, at) or at
        while True:
            end = self._one(text, at, calls)
            if end is None:
                return None
            if self.close.strip():
                if (closed := self._after("close", text, end)) is not None:
                    return len(text[:closed].rstrip()) if closed < len(text) else closed
            elif not self._goes_on(text, end):
                return end
            after = self._after("separator", text, end)
            if after is None:
                return None
            at = after

    def _one(self, text: str, at: int, calls: list[ReadCall]) -> int | None:
        start = self._after("head", text, at)
        found = None if start is None else self.form.parse(text, start)
        if found is None or not _is_text(found.name + found.arguments + (found.id or "")):
            return None
        calls.append(found)
        if not self.tail.strip():
            return found.end
        end = self._after("tail", text, found.end)
        return None if end is None else found.end + len(text[found.end : end].rstrip())

    def _goes_on(self, text: str, at: int) -> bool:
        """Whether another call follows directly."""
        after = self._after("separator", text, at)
        if after is None or after >= len(text):
            return False
        if self.head.strip():
            return self._after("head", text, after) is not None
        return bool(self.separator.strip())

    def _after(self, name: str, text: str, at: int) -> int | None:
        found = self._pieces[name].match(text, at)
        return found.end() if found else None


def _is_text(text: str) -> bool:
    """Whether a text can be sent: an escape may stand for half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _call(read: ReadCall) -> dict[str, Any]:
    call = {"name": read.name, "arguments": read.arguments}
    return call if read.id is None else {**call, "id": read.id}
