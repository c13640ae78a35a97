"""Reads a turn while it is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from miles_core.session.parsing.turn import TurnParser
    from miles_core.types import Message

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes of the longest character of UTF-8, and so the most tokens that can share one."""
_SHARE = 256
"""Text is parsed anew when it has grown by one part in so many: the work of a turn stays linear in its length."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a turn says more than before; the calls come with the last one."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()


class TurnReader:
    """Turns ids into deltas that, joined, are the message of the turn.

    ``decode`` gives the text of ids, special tokens included. ``stop_ids`` end a turn and are no text; nor is the first
    of ``stop_texts``, which may come in pieces.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        parser: TurnParser,
        *,
        calls: bool,
        stop_ids: Collection[int] = (),
        stop_texts: Sequence[str] = (),
    ) -> None:
        self._decode, self._parser, self._calls = decode, parser, calls
        self._stop_ids, self._stop_texts = frozenset(stop_ids), tuple(stop_texts)
        self._ids: list[int] = []
        self._from = self._to = 0  # the ids whose text is the context of what comes, and is told already
        self._wait = 0
        self._text = ""
        self._unread = 0  # characters at the end that no parser has seen
        self._told = ("", "")

    def feed(self, ids: Sequence[int]) -> Delta:
        """What these ids, which follow the ones before, settle.

        Raises:
            SessionError: if a parser fails, or takes back what it has settled.
        """
        self._ids += [each for each in ids if each not in self._stop_ids]
        new = self._new_text()
        self._text += new
        self._unread += len(new)
        if not self._unread or self._unread * _SHARE < len(self._text):
            return Delta()
        end, self._unread = self._unstopped(self._unread), 0
        return self._tell(self._parser.settled(self._text[:end], calls=self._calls))

    def finish(self, message: Message) -> Delta:
        """What is left of the message that the whole turn spells.

        Raises:
            SessionError: if it does not begin with what was told.
        """
        reasoning = message.extra.get("reasoning_content")
        said = reasoning if isinstance(reasoning, str) else "", message.text
        rest = self._tell(said)
        if self._told != said:
            raise SessionError(f"the message does not begin with what was streamed of it: {self._told!r}"[:500])
        return Delta(rest.reasoning, rest.content, message.tool_calls)

    def _new_text(self) -> str:
        """The text of the ids that are not told yet, as far as their characters are complete.

        It is decoded behind the ids before it, since the text of an id may depend on them.
        """
        if len(self._ids) < self._wait:
            return ""
        known = self._decode(self._ids[self._from : self._to])
        text = self._decode(self._ids[self._from :])
        if text.endswith(_UNFINISHED):
            open_ids = len(self._ids) - self._to
            if open_ids > _LONGEST_CHARACTER:  # bytes that are no text: asked less and less often, so as to stay linear
                self._wait = len(self._ids) + open_ids // 2
            return ""
        self._from, self._to = self._to, len(self._ids)
        return text[len(known) :]

    def _unstopped(self, new: int) -> int:
        """How many characters stand before a stop text, or what may become one; the last ``new`` were not looked at."""
        text, end = self._text, len(self._text)
        for stop in self._stop_texts:
            at = text.find(stop, max(0, len(text) - new - len(stop)))
            if at < 0:
                begun = (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n]))
                at = len(text) - next(begun, 0)
            end = min(end, at)
        return end

    def _tell(self, said: tuple[str, str]) -> Delta:
        """What is new; a text that does not go on from the one before is left for the end."""
        reasoning, content = (
            now[len(told) :] if now.startswith(told) else "" for now, told in zip(said, self._told, strict=True)
        )
        self._told = (self._told[0] + reasoning, self._told[1] + content)
        return Delta(reasoning, content)
