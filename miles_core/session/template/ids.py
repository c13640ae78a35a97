"""Prompts and boundaries as token ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles_core.session.template.boundary import Deriver
from miles_core.session.template.guard import Guard, special_in
from miles_core.session.template.independence import Independence
from miles_core.session.template.words import Words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from miles_core.session.template.encoding import TextEncoder
    from miles_core.session.template.render import Chat
    from miles_core.session.template.turn import Turn


@dataclass(frozen=True)
class IdBoundary:
    """Ids of what follows a generated turn, after the stop is taken back if ``drop_stop``."""

    ids: tuple[int, ...]
    drop_stop: bool


class IdDeriver:
    """Derives ids for one template and one tokenizer.

    Where a message, a tool or a call holds the text of a special token, the template renders a word in its place, and
    the ids of that text are put where the word stands. ``independence`` is shared by derivers of the same template.
    """

    def __init__(self, deriver: Deriver, encoder: TextEncoder, independence: Independence | None = None) -> None:
        self._deriver, self._encoder = deriver, encoder
        self.independence = independence or Independence(deriver)

    def at(self, clock: datetime | None) -> IdDeriver:
        """The same at another time, where the template reads it."""
        template = self._deriver.template
        if clock == template.clock or not template.reads_clock:
            return self
        deriver = Deriver(replace(template, clock=clock), self._deriver.forms)
        return IdDeriver(deriver, self._encoder, self.independence)

    @property
    def text(self) -> Deriver:
        """What derives the texts that the ids are of."""
        return self._deriver

    def prompt(self, messages: Sequence[Chat], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Ids of the first prompt of a conversation.

        Raises:
            SessionError: if the template refuses it, or changes text that must not become a special token.
        """
        text, spans = self._deriver.prompt(messages, tools), dict[str, str]()
        shaped = self._deriver.forms.messages(messages)
        if special_in(self._encoder, [shaped, tools]):
            guard = self._guard(shaped, tools)
            guarded = [guard.message(message) for message in shaped]
            text = guard.marked(self._deriver.prompt(guarded, guard.value(tools)), text)
            spans = guard.spans
        return tuple(self._encoder.whole(text, spans))

    def boundary(self, turn: Turn) -> IdBoundary:
        """Ids of what follows a turn.

        Raises:
            SessionError: if the messages cannot be appended.
        """
        found, spans = self._deriver.boundary(turn), dict[str, str]()
        suffix = found.suffix
        shaped = self._deriver.forms.messages((*turn.messages, *turn.appended))
        if special_in(self._encoder, [shaped, turn.tools, turn.calls]):
            guard = self._guard(shaped, turn.tools, turn.calls, turn.generated)
            guarded, count = [guard.message(message) for message in shaped], len(turn.messages)
            other = replace(
                turn,
                messages=tuple(guarded[:count]),
                appended=tuple(guarded[count:]),
                tools=tuple(guard.value(turn.tools)),
                calls=tuple(guard.value(turn.calls)),
            )
            suffix = guard.marked(self._deriver.boundary(other).suffix, suffix)
            spans = guard.spans
        anchor = None if found.drop_stop else turn.stop
        return IdBoundary(tuple(self._encoder.after(anchor, suffix, spans)), found.drop_stop)

    def generated(self, text: str) -> tuple[int, ...]:
        """Ids of a generated text, for callers that hold no ids of it."""
        return tuple(self._encoder.after(None, text, {}))

    def _guard(self, *taken: Any) -> Guard:
        return Guard(self._encoder, Words(self._deriver.template.source, *taken))
