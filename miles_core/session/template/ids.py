"""Prompts and boundaries as token ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.session.template.words import Words, texts_of, with_texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.boundary import Deriver
    from miles_core.session.template.encoding import TextEncoder
    from miles_core.session.template.render import Chat
    from miles_core.session.template.turn import Turn

_NEAR = 8


@dataclass(frozen=True)
class IdBoundary:
    """Ids of what follows a generated turn, after the stop is taken back if ``drop_stop``."""

    ids: tuple[int, ...]
    drop_stop: bool


class IdDeriver:
    """Derives ids for one template and one tokenizer.

    Where a message holds the text of a special token, the template renders a word in its place, and the ids of that
    text are put where the word stands.
    """

    def __init__(self, deriver: Deriver, encoder: TextEncoder) -> None:
        self._deriver, self._encoder = deriver, encoder

    def prompt(self, messages: Sequence[Chat], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Ids of the first prompt of a conversation.

        Raises:
            SessionError: if the template refuses it, or changes text that must not become a special token.
        """
        text = self._deriver.prompt(messages, tools)
        guarded, spans = self._guarded(messages, ())
        if spans:
            text = self._marked(self._deriver.prompt(guarded, tools), spans, text, messages)
        return tuple(self._encoder.whole(text, spans))

    def boundary(self, turn: Turn) -> IdBoundary:
        """Ids of what follows a turn.

        Raises:
            SessionError: if the messages cannot be appended.
        """
        found = self._deriver.boundary(turn)
        suffix = found.suffix
        guarded, spans = self._guarded((*turn.messages, *turn.appended), (turn.generated,))
        if spans:
            count = len(turn.messages)
            other = replace(turn, messages=tuple(guarded[:count]), appended=tuple(guarded[count:]))
            suffix = self._marked(self._deriver.boundary(other).suffix, spans, suffix, turn.appended)
        anchor = None if found.drop_stop else turn.stop
        return IdBoundary(tuple(self._encoder.after(anchor, suffix, spans)), found.drop_stop)

    def generated(self, text: str) -> tuple[int, ...]:
        """Ids of a generated text, for callers that hold no ids of it."""
        return tuple(self._encoder.after(None, text, {}))

    def _guarded(self, messages: Sequence[Chat], taken: Sequence[str]) -> tuple[list[Chat], dict[str, str]]:
        """Messages with a word for each text that would become a special token, and what each word stands for.

        Assistant messages stay: what the model said may hold special tokens.
        """
        words = Words(self._deriver.template.source, list(messages), list(taken))
        spans: dict[str, str] = {}

        def guard(text: str) -> str:
            for special in dict.fromkeys(self._encoder.specials(text)):
                word = words.span(len(spans))
                spans[word] = special
                text = text.replace(special, word)
            return text

        guarded = [
            message if message.get("role") == "assistant" else with_texts(message, guard) for message in messages
        ]
        return guarded, spans

    def _marked(self, guarded: str, spans: dict[str, str], text: str, messages: Sequence[Chat]) -> str:
        """``text`` with words where special text was typed."""
        if _spelled(guarded, spans) == text:
            return guarded
        # The template looks at the text, so the words change what it writes: find the messages in what it wrote.
        typed = [each for message in messages if message.get("role") != "assistant" for each in texts_of(message)]
        found = text
        for each in {each for each in typed if self._encoder.specials(each)}:
            marked = each
            for word, special in spans.items():
                marked = marked.replace(special, word)
            if text.count(each) != typed.count(each) or _around(text, each) != _around(guarded, marked):
                raise SessionError(
                    f"the chat template treats the text {', '.join(self._encoder.specials(each))} in a way of its own",
                    remedy="Remove the text from the message: the model would take it for the template's own.",
                )
            found = found.replace(each, marked)
        return found


def _around(text: str, part: str) -> set[tuple[str, str]]:
    """What stands directly before and after each place of ``part``."""
    pieces = text.split(part)
    return {(before[-_NEAR:], after[:_NEAR]) for before, after in pairwise(pieces)}


def _spelled(text: str, spans: Mapping[str, str]) -> str:
    for word, special in spans.items():
        text = text.replace(word, special)
    return text
