"""Text that looks like a special token, where it was typed and not written by the template."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.session.template.encoding import TextEncoder
    from miles_core.session.template.render import Chat
    from miles_core.session.template.words import Words

_NEAR = 8
_SAID = ("content", "reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's message that hold what the model said, special tokens included."""


class Guard:
    """Puts a word in the place of each text that would become a special token; ``spans`` says what each stands for."""

    def __init__(self, encoder: TextEncoder, words: Words) -> None:
        self._encoder, self._words = encoder, words
        self._word_of: dict[str, str] = {}
        self._typed: dict[str, None] = {}

    @property
    def spans(self) -> dict[str, str]:
        """What each word stands for."""
        return {word: special for special, word in self._word_of.items()}

    def message(self, message: Chat) -> Chat:
        """A message with words; what an assistant said stays as it is."""
        kept = _SAID if message.get("role") == "assistant" else ()
        return {key: value if key in kept else self.value(value) for key, value in message.items()}

    def value(self, value: Any) -> Any:
        """Texts, lists and mappings with words, keys too."""
        return _mapped(value, self._text)

    def _text(self, text: str) -> str:
        specials = dict.fromkeys(self._encoder.specials(text))
        if specials:
            self._typed[text] = None
        for special in specials:
            word = self._word_of.setdefault(special, self._words.span(len(self._word_of)))
            text = text.replace(special, word)
        return text

    def marked(self, guarded: str, text: str) -> str:
        """``text`` with words where special text was typed; ``guarded`` is what the template wrote of words.

        Raises:
            SessionError: if the template treats special text in a way of its own.
        """
        if self._spelled(guarded) == text:
            return guarded
        # The template looks at the text, so the words change what it writes: find the texts in what it wrote.
        found, alike = text, True
        for each in list(self._typed):
            words = self._text(each)
            alike = alike and _around(text, each) == _around(guarded, words)
            found = found.replace(each, words)
        if not alike or any(found.count(word) != guarded.count(word) for word in self.spans):
            raise SessionError(
                f"the chat template treats the text {', '.join(self._word_of)} in a way of its own",
                remedy="Remove the text from the messages and tools: the model would take it for the template's.",
            )
        return found

    def _spelled(self, text: str) -> str:
        for special, word in self._word_of.items():
            text = text.replace(word, special)
        return text


def special_in(encoder: TextEncoder, values: Sequence[Any]) -> bool:
    """Whether some text of these values would become a special token."""
    found = False

    def look(text: str) -> str:
        nonlocal found
        found = found or bool(encoder.specials(text))
        return text

    for value in values:
        _mapped(value, look)
    return found


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    return value


def _around(text: str, part: str) -> set[tuple[str, str]]:
    """What stands directly before and after each place of ``part``."""
    pieces = text.split(part)
    return {(before[-_NEAR:], after[:_NEAR]) for before, after in pairwise(pieces)}
