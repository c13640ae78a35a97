"""The close of a turn where the sampled stop is not the one that history shows, or where none was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template import stubs
from miles_core.session.template.pieces import (
    aligned_length,
    close_length,
    common_start,
    first_special,
    spoken_length,
)
from miles_core.session.template.turn import Boundary, Turn
from miles_core.session.template.view import HistoryRefused, View, Viewer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.template.render import Chat

OPENERS = ("user", "tool", "system")


class Closing:
    """Finds closes by comparing what follows the same turn in several renders."""

    def __init__(self, viewer: Viewer, turn: Turn, history: Sequence[Chat]) -> None:
        self._viewer, self._turn, self._history = viewer, turn, history

    def without_stop(self, view: View, others: Sequence[str]) -> Boundary:
        """The boundary where history never shows the sampled stop after such a turn.

        ``others`` are what the template writes where something else follows, nothing first: a close is what both start
        with. The first that has one tells, since the last turn of a conversation may be closed as no other is.
        """
        stop = self._turn.stop or ""
        if not view.head and self._turn.appended[0].get("role") == "assistant":
            raise SessionError(
                "the chat template writes an appended 'assistant' message into the generated turn",
                remedy="Append a message of another role first.",
            )
        if not view.whole:
            role = self._turn.appended[0].get("role")
            raise SessionError(f"the chat template writes {role!r} messages differently for some contents")
        last = self._last()
        if stop not in last and self._opens(stop):
            return Boundary(view.tail, True, "the stop opens another turn and is taken back")
        for other in others:
            shared = "".join(common_start(view.head, other))
            if length := aligned_length(shared, last, stop) or close_length(shared):
                return Boundary(view.tail[length:], False, "the stop stands in for the close that history shows")
            if other and shared == others[0]:
                break  # what ends a conversation is also what ends this turn, and it holds no special token
        return Boundary(view.tail, False, "after the stop: history shows no close")

    def _last(self) -> str:
        """What ends a conversation whose last turn is an answer of text."""
        return self._viewer.followers_of_text(self._history, self._turn)[0]

    def _opens(self, stop: str) -> bool:
        """Whether the stop starts a message of some role."""
        for role in OPENERS:
            other: Chat = {"role": role, "content": "x"}
            turn = Turn((), self._turn.generated, None, (other,), self._turn.tools)
            if role == "tool":
                turn = stubs.with_result(turn)
            try:
                view = self._viewer.called(self._history, turn, turn.appended) if role == "tool" else None
                view = view or self._viewer.text(self._history, turn.appended)
            except (HistoryRefused, SessionError):
                continue
            if stop in view.head:
                return True
        return False

    def syntax_length(self, view: View) -> int:
        """Length of the syntax of calls in the head: what the turn said of it, or else what is before the close."""
        if length := spoken_length(self._turn.spoken, view.head):
            return length
        if (before := self._before_another_call(view)) is not None:
            return before
        close = "".join(common_start(*self._viewer.followers_of_text(self._history, self._turn)[:2]))
        close = close[: close_length(close)]
        if close and (at := view.head.find(close)) >= 0:
            return at
        return first_special(view.head)

    def _before_another_call(self, view: View) -> int | None:
        """Length of what is written after a call, whether it is the last one or not."""
        try:
            middle = self._viewer.middle_call(self._history, self._turn)
        except (HistoryRefused, SessionError):
            return None
        return len("".join(common_start(view.head, middle))) if middle else None
