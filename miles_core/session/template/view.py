"""Renders of a stand-in and what follows it, with the proof that the template appends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template import stubs
from miles_core.session.template.pieces import same_start
from miles_core.session.template.words import Words, marked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.template.forms import Forms, Tools
    from miles_core.session.template.render import Chat, ChatTemplate
    from miles_core.session.template.turn import Turn

OTHER_ROLE = "Let the environment answer in a role that the template can append, not {!r}."


class HistoryRefused(Exception):  # noqa: N818 - caught within this package
    """The template refuses this history; a shorter one may tell what follows."""

    def __init__(self, reason: SessionError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class View:
    """What follows the stand-in: ``head`` up to the first appended text, ``tail`` all of it.

    ``whole`` is false where the text before the first appended one depends on that text: ``head`` ends there.
    """

    head: str
    tail: str
    whole: bool

    def after(self, length: int) -> View:
        """The same without its first ``length`` characters."""
        return View(self.head[length:], self.tail[length:], self.whole)


class Viewer:
    """Renders conversations with one template, in its forms, with one set of tools."""

    def __init__(self, template: ChatTemplate, forms: Forms, tools: Tools, words: Words) -> None:
        self._template, self._forms, self._tools, self.words = template, forms, tools, words

    def text(self, history: Sequence[Chat], appended: Sequence[Chat]) -> View:
        """What follows an answer of text.

        Raises:
            HistoryRefused: if the template fails.
            SessionError: if it drops, doubles, hoists or reorders a message.
        """
        try:
            return self._view(history, stubs.plain(self.words), appended)
        except SessionError as error:
            raise _refused(error) from error

    def called(self, history: Sequence[Chat], turn: Turn, appended: Sequence[Chat]) -> View | None:
        """What follows calls; ``None`` if the template does not show calls, or refuses what is only a comparison."""
        first: SessionError | None = None
        for stub in stubs.calling(turn, self.words) if self._forms.calls else ():
            try:
                return self._view(history, stub, appended)
            except SessionError as error:
                first = first or error
        if first is not None and turn.answers_calls:
            raise _refused(first)
        return None

    def middle_call(self, history: Sequence[Chat], turn: Turn) -> str | None:
        """What the template writes after a call that another call follows."""
        for stub in stubs.calling(turn, self.words, more=1) if self._forms.calls else ():
            try:
                after = self.after([*history, stub], prompt=False)
            except SessionError:
                continue
            if self.words.mark(0) in after:
                return after.partition(self.words.mark(0))[0]
        return None

    def followers_of_text(self, history: Sequence[Chat], turn: Turn) -> list[str]:
        """What follows an answer of text: nothing first, then the next answer or a message of another role."""
        found = [self._open([*history, stubs.plain(self.words)], prompt=prompt) for prompt in (False, True)]
        for role in ("assistant", "system"):
            if turn.appended[0].get("role") != role:
                with suppress(HistoryRefused, SessionError):
                    found.append(self.text(history, [{"role": role, "content": "x"}]).head)
        return found

    def followers_of_calls(self, history: Sequence[Chat], turn: Turn) -> list[str]:
        """What follows calls: nothing first, then the next answer or a question."""
        found = ["", ""]
        for stub in stubs.calling(turn, self.words) if self._forms.calls else ():
            found = [self._open([*history, stub], prompt=prompt) for prompt in (False, True)]
            if any(found):
                break
        asked = self.called(history, turn, [{"role": "user", "content": "x"}])
        return [*found, *([asked.head] if asked else [])]

    def _open(self, messages: Sequence[Chat], *, prompt: bool) -> str:
        with suppress(SessionError):
            return self.after(messages, prompt=prompt)
        return ""

    def _view(self, history: Sequence[Chat], stub: Chat, appended: Sequence[Chat]) -> View:
        shape, marks = marked(self._forms.messages(appended), self.words)
        shown = self.after([*history, stub, *shape], prompt=True, before=[mark for mark, _ in marks])
        at = 0
        for mark, index in marks:
            found = shown.find(mark, at)
            if found < 0 or shown.count(mark) != 1:
                role = appended[index].get("role")
                verb = "drops" if mark not in shown else "doubles" if found >= 0 else "reorders"
                raise SessionError(
                    f"the chat template {verb} a {role!r} message after the assistant's turn",
                    remedy=OTHER_ROLE.format(role),
                )
            at = found + len(mark)
        tail = self.after([*history, stub, *appended], prompt=True)
        head = shown.partition(marks[0][0])[0]
        same = same_start(head, tail)
        return View(same, tail, same == head)

    def after(self, messages: Sequence[Chat], *, prompt: bool, before: Sequence[str] = ()) -> str:
        """The text after the stand-in, which must come once and ``before`` all of these."""
        text = self._template.render(self._forms.messages(messages), self._tools, prompt=prompt)
        if (count := text.count(self.words.sentinel)) != 1:
            calls = any(self.words.sentinel in str(message.get("tool_calls")) for message in messages)
            what = "last call of the assistant's turn" if calls else "assistant's turn"
            raise SessionError(
                f"the chat template shows the {what} {count} times; expected once",
                remedy="This template cannot be continued token by token; use another template for this model.",
            )
        first, _, after = text.partition(self.words.sentinel)
        if any(mark in first for mark in before):
            raise SessionError(
                "the chat template moves an appended message before the assistant's turn",
                remedy="Put system messages at the start of the conversation only.",
            )
        return after


def _refused(error: SessionError) -> Exception:
    """Only a render that failed is worth a try without the history; what is dropped or moved stays refused."""
    return HistoryRefused(error) if error.__cause__ is not None else error
