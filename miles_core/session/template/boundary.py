"""Where a generated turn ends and what the template writes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.session.template import stubs
from miles_core.session.template.closing import Closing
from miles_core.session.template.dummies import dummies
from miles_core.session.template.pieces import said_length
from miles_core.session.template.probe import probe
from miles_core.session.template.turn import Boundary, Turn
from miles_core.session.template.view import HistoryRefused, View, Viewer
from miles_core.session.template.words import Words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.forms import Forms
    from miles_core.session.template.render import Chat, ChatTemplate


class Deriver:
    """Derives prompts and boundaries for one template."""

    def __init__(self, template: ChatTemplate, forms: Forms | None = None) -> None:
        self.template = template
        self.forms = forms or probe(template)

    def prompt(self, messages: Sequence[Chat], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The first prompt of a conversation.

        Raises:
            SessionError: if the template refuses it.
        """
        return self.template.render(self.forms.messages(messages), self.forms.of_tools(tools), prompt=True)

    def boundary(self, turn: Turn) -> Boundary:
        """The text that follows a turn.

        Raises:
            SessionError: with the reason, if the template cannot append the messages.
        """
        if not turn.appended:
            raise SessionError("nothing is appended", remedy="Append at least one message.")
        if turn.stop and not turn.generated.endswith(turn.stop):
            raise SessionError(f"the generated text does not end in its stop {turn.stop!r}")
        words = Words(self.template.source, turn.messages, turn.appended, turn.tools, turn.calls)
        viewer = Viewer(self.template, self.forms, self.forms.of_tools(turn.tools), words)
        try:
            return derive(viewer, turn, turn.messages)
        except HistoryRefused as refused:
            return _without_history(viewer, turn, refused.reason)


def _without_history(viewer: Viewer, turn: Turn, reason: SessionError) -> Boundary:
    """The boundary after conversations of our own, if they agree."""
    found: list[Boundary] = []
    for history in dummies():
        try:
            found.append(derive(viewer, turn, history))
        except (HistoryRefused, SessionError):
            continue
    if not found or len({(each.suffix, each.drop_stop) for each in found}) > 1:
        raise reason
    return Boundary(found[0].suffix, found[0].drop_stop, f"{found[0].how}, without the history")


def derive(viewer: Viewer, turn: Turn, history: Sequence[Chat]) -> Boundary:
    """The boundary of a turn after ``history``, found in renders of ``viewer``.

    Raises:
        HistoryRefused: if the template fails on the history.
        SessionError: if it cannot append the messages.
    """
    known = turn.answers_calls or turn.calls
    called = viewer.called(history, turn, turn.appended) if known else None
    if called is None or (not turn.answers_calls and (turn.stop or "") not in called.head):
        return _after_text(viewer, turn, history)
    return _after_calls(viewer, turn, history, called)


def _after_text(viewer: Viewer, turn: Turn, history: Sequence[Chat]) -> Boundary:
    view = viewer.text(history, turn.appended)
    if turn.stop and (at := view.head.find(turn.stop)) >= 0:
        return Boundary(view.tail[at + len(turn.stop) :], False, "after the stop, in the close of an answer")
    length = said_length(turn.spoken, view.head)
    rest = view.after(length)
    if not turn.stop:
        return Boundary(rest.tail, False, "the whole close of an answer, since no stop was sampled")
    # An answer with calls may close in another way, and the messages that follow may not say that it had some.
    called = None if turn.answers_calls else viewer.called(history, turn, turn.appended)
    if called is not None and (at := called.head.find(turn.stop)) >= 0:
        return Boundary(called.tail[at + len(turn.stop) :], False, "after the stop, in the close of calls")
    others = [other[length:] for other in viewer.followers_of_text(history, turn)]
    return Closing(viewer, turn, history).without_stop(rest, others)


def _after_calls(viewer: Viewer, turn: Turn, history: Sequence[Chat], view: View) -> Boundary:
    if turn.stop and (at := view.head.find(turn.stop)) >= 0:
        return Boundary(view.tail[at + len(turn.stop) :], False, "after the stop, in the close of calls")
    closing = Closing(viewer, turn, history)
    length = closing.syntax_length(view)
    rest = view.after(length)
    if not turn.stop:
        return Boundary(rest.tail, False, "what the calls lack, since no stop was sampled")
    others = [other[length:] for other in viewer.followers_of_calls(history, stubs.of_results(turn))]
    return closing.without_stop(rest, others)
