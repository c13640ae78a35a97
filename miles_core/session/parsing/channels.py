"""Turns that consist of several messages, each with a header that says for whom it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from miles_core.session.parsing.fixed import NAME, first_marker
from miles_core.session.parsing.json_text import NotJsonError, after_space, members_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a turn as it is written, its header and its body."""

    written: str
    header: str
    body: str


@dataclass(frozen=True)
class Channels:
    """``start header message BODY end``: the first message lacks its ``start``, which the prompt holds.

    A header with ``thought`` in it is of reasoning, one with ``recipient`` and a name of a call; others are content.
    ``call_end`` ends calls; it is often a stop token, and then no part of the text.
    """

    start: str
    message: str
    end: str
    thought: str
    recipient: str = ""
    call_end: str = ""

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(mark) for mark in (self.end, self.call_end) if mark))

    @property
    def openers(self) -> tuple[str, ...]:
        """With what a header begins."""
        return tuple(mark for mark in (first_marker(self.thought), self.recipient.strip()) if mark)

    def parts(self, text: str) -> Iterator[Part]:
        """The messages of a turn; where no header stands, or one that is not over, the text is all body."""
        at = 0
        while at < len(text):
            started = text.startswith(self.start, at)
            header = at + len(self.start) if started else at
            headed = (started or at == 0) and text.startswith(self.openers, after_space(text, header))
            body = text.find(self.message, header) if headed else -1
            if body < 0 or self._ends.search(text, header, body):
                following = text.find(self.start, header)
                following = len(text) if following < 0 else following
                yield Part(text[at:following], "", text[at:following])
            else:
                start = body + len(self.message)
                found = self._ends.search(text, start)
                end, following = (found.start(), found.end()) if found else (len(text), len(text))
                yield Part(text[at:following], text[header:body], text[start:end])
            at = following

    def called(self, header: str) -> str | None:
        """The name of the function that a header calls."""
        if not self.recipient:
            return None
        found = re.search(rf"{re.escape(self.recipient.strip())}{NAME}(?=\s|<|$)", header)
        return found["name"] if found else None


@dataclass(frozen=True)
class ChannelReasoning:
    """The reasoning of such a turn, as a :class:`ReasoningParser`: calls stay in the rest as they are written."""

    channels: Channels
    again: bool = True

    @property
    def starts(self) -> tuple[str, ...]:
        """With what a message begins."""
        return (self.channels.start, *self.channels.openers)

    @property
    def ends(self) -> str:
        """What ends the reasoning."""
        return self.channels.end

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that may stand in the rest of a text and are no content."""
        channels = self.channels
        return tuple(mark for mark in (channels.start, channels.message, channels.end, channels.call_end) if mark)

    def __call__(self, text: str, /) -> tuple[str | None, str]:
        """The reasoning and the rest."""
        thought: list[str] = []
        said: list[str] = []
        for part in self.channels.parts(text):
            if self.channels.called(part.header) is not None:
                said.append(part.written)
            else:
                (thought if self.channels.thought in part.header else said).append(part.body)
        return "".join(thought) or None, "".join(said)


@dataclass(frozen=True)
class ChannelCalls:
    """The calls in what :class:`ChannelReasoning` leaves, as a :class:`ToolCallParser`."""

    channels: Channels

    @property
    def starts(self) -> tuple[str, ...]:
        """Where a call may begin."""
        return ChannelReasoning(self.channels).starts

    def __call__(self, text: str, /) -> tuple[str, tuple[Mapping[str, Any], ...]]:
        """The text beside the calls, and the calls; if one of them cannot be read, the whole text and none."""
        channels = self.channels
        first = at = 0 if text.lstrip().startswith(self.starts) else text.find(channels.start)
        calls: list[Mapping[str, Any]] = []
        while 0 <= at < len(text) and (not calls or text.startswith(channels.start, at)):
            read = self._read(text, at + len(channels.start) if text.startswith(channels.start, at) else at)
            if read is None:
                return text, ()
            call, at = read
            calls.append(call)
        return (text[:first] + text[at:], tuple(calls)) if calls else (text, ())

    def _read(self, text: str, at: int) -> tuple[Mapping[str, Any], int] | None:
        """The call whose header begins at ``at``, and where it ends."""
        body = text.find(self.channels.message, at)
        name = self.channels.called(text[at:body]) if body >= 0 else None
        start = after_space(text, body + len(self.channels.message))
        try:
            _, end = members_at(text, start)
        except NotJsonError:
            return None
        close = after_space(text, end)
        if name is None or not (close == len(text) or text.startswith(self.channels.call_end, close)):
            return None
        return {"name": name, "arguments": text[start:end]}, min(close + len(self.channels.call_end), len(text))
