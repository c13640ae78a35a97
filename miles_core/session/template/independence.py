"""Whether what follows a generated turn depends on the conversation before it: if not, a short one stands in."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template.boundary import Deriver, derive
from miles_core.session.template.histories import History, general, of_all_texts, particular
from miles_core.session.template.literals import Literals
from miles_core.session.template.shape import Shape
from miles_core.session.template.view import HistoryRefused, View, Viewer
from miles_core.session.template.words import Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.template.forms import Forms, Tools
    from miles_core.session.template.render import Chat, ChatTemplate
    from miles_core.session.template.turn import Turn

_CLOCK = datetime(2025, 7, 10, 12)
_MOST_SHAPES = 128
"""Clients choose the shapes, and each costs a proof: rare ones after these are derived from the whole history."""


@dataclass(frozen=True)
class Finding:
    """``stand_in`` may replace every history; where there is none, ``differs`` is one after which the text differs.

    ``head`` is what stands before the first appended text.
    """

    stand_in: History | None
    differs: History | None = None
    head: str = ""


class Independence:
    """Tries varied histories once for each shape of a turn: a template can only branch on what it names."""

    def __init__(self, deriver: Deriver) -> None:
        pinned = replace(deriver.template, clock=deriver.template.clock or _CLOCK)
        self._deriver = Deriver(pinned, deriver.forms)
        self._found: dict[Shape, Finding] = {}

    def of(self, turn: Turn) -> Finding:
        """What was found for turns like this one, after histories that end in a role of :data:`ENDS`."""
        shape = Shape.of(turn)
        if shape is None or (shape not in self._found and len(self._found) >= _MOST_SHAPES):
            return Finding(None)
        whole = self._remembered(replace(shape, stop=None))
        # A stop that history shows needs no more renders than a turn without one.
        return whole if shape.stop is None or shape.stop in whole.head else self._remembered(shape)

    def _remembered(self, shape: Shape) -> Finding:
        if shape not in self._found:
            self._found[shape] = self._try(shape)
        return self._found[shape]

    @cached_property
    def _literals(self) -> Literals:
        return Literals.of(self._deriver.template)

    @cached_property
    def _words(self) -> Words:
        return Words(self._deriver.template.source, self._literals.texts)

    def _try(self, shape: Shape) -> Finding:
        turn, tried = shape.turn("next"), general(self._literals)
        stand_in = next((history for history in tried if self._takes(history, turn)), None)
        first = None if stand_in is None else self._derived(turn, stand_in)
        if stand_in is None or first is None:
            return Finding(None)
        for history in tried:
            other = self._derived(turn, history)
            if (other is None or other.seen != first.seen) and self._takes(history, turn):
                return Finding(None, history)
        stub, view = first.written
        for history in particular(self._literals):
            if self._written(turn, history, stub) != view.tail and self._takes(history, turn):
                return Finding(None, history)
        differs = self._try_texts(shape, stand_in, stub)
        return Finding(None if differs else stand_in, differs, view.head)

    def _try_texts(self, shape: Shape, stand_in: History, stub: Chat) -> History | None:
        """Messages that say what the template names may be written as the history demands, though others are not."""
        texts = ("", " ", *self._literals.texts, " one ".join(self._literals.texts))
        asked = [shape.turn(text) for text in texts]
        expected = [self._written(turn, stand_in, stub) for turn in asked]
        for history in of_all_texts(self._literals):
            for turn, text in zip(asked, expected, strict=True):
                if self._written(turn, history, stub) != text:
                    if self._takes(history, turn):
                        return history
                    break
        return None

    def _takes(self, history: History, turn: Turn) -> bool:
        """Whether a policy can have been asked to continue this history."""
        with suppress(SessionError):
            self._deriver.prompt(history, turn.tools)
            return True
        return False

    def _viewer(self, turn: Turn) -> _Recorder:
        forms = self._deriver.forms
        return _Recorder(self._deriver.template, forms, forms.of_tools(turn.tools), self._words)

    def _written(self, turn: Turn, history: History, stub: Chat) -> str | None:
        """What follows the turn, which ``stub`` stands in for; ``None`` if it is refused."""
        with suppress(SessionError):
            return self._viewer(turn).after([*history, stub, *turn.appended], prompt=True)
        return None

    def _derived(self, turn: Turn, history: History) -> _Recorder | None:
        """All that a derivation looks at: where it is the same, so is the boundary. ``None`` if it is refused."""
        viewer = self._viewer(turn)
        try:
            derive(viewer, turn, history)
        except (HistoryRefused, SessionError):
            return None
        return viewer


class _Recorder(Viewer):
    """Keeps what followed the stand-in in each render, ``None`` for one that failed."""

    def __init__(self, template: ChatTemplate, forms: Forms, tools: Tools, words: Words) -> None:
        super().__init__(template, forms, tools, words)
        self.seen: list[str | None] = []
        self.written: tuple[Chat, View] = ({}, View("", "", whole=False))
        """The stand-in that the template took first, and what it wrote after it."""

    def after(self, messages: Sequence[Chat], *, prompt: bool, before: Sequence[str] = ()) -> str:
        """As of :class:`Viewer`."""
        text = None
        try:
            text = super().after(messages, prompt=prompt, before=before)
        finally:
            self.seen.append(text)
        return text

    def _view(self, history: Sequence[Chat], stub: Chat, appended: Sequence[Chat]) -> View:
        view = super()._view(history, stub, appended)
        if not self.written[0]:
            self.written = stub, view
        return view
