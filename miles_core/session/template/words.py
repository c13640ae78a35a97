"""Words that stand in for real texts in a render: letters only, so that no template trims or escapes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.session.template.render import Chat


class Words:
    """Stand-ins that the conversation and the template do not hold."""

    def __init__(self, *taken: Any) -> None:
        text = "".join(item if isinstance(item, str) else json.dumps(item, default=str) for item in taken)
        salt = "q"
        while f"{salt}Sent" in text or f"{salt}Mark" in text or f"{salt}Span" in text:
            salt += "q"
        self.sentinel = f"{salt}Sentinel{salt}"
        self._salt = salt

    def mark(self, index: int) -> str:
        """The stand-in of the ``index``-th appended text."""
        return f"{self._salt}Mark{_letters(index)}{self._salt}"

    def span(self, index: int) -> str:
        """The stand-in of the ``index``-th text that looks like a special token."""
        return f"{self._salt}Span{_letters(index)}{self._salt}"


def _letters(index: int) -> str:
    return "".join(chr(ord("A") + int(digit)) for digit in str(index))


def with_texts(message: Chat, change: Callable[[str], str]) -> Chat:
    """A copy of a message in which every text of its content is changed."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": change(content)}
    if isinstance(content, list | tuple):
        return {**message, "content": [_changed_part(part, change) for part in content]}
    return dict(message)


def texts_of(message: Chat) -> list[str]:
    """The texts of a message's content."""
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return text

    with_texts(message, keep)
    return texts


def _changed_part(part: Any, change: Callable[[str], str]) -> Any:
    if isinstance(part, str):
        return change(part)
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": change(part["text"])}
    return part


def marked(appended: Sequence[Chat], words: Words) -> tuple[list[Chat], list[tuple[str, int]]]:
    """The appended messages with a stand-in for every text, and each stand-in with its message's index."""
    marks: list[tuple[str, int]] = []
    messages: list[Chat] = []
    for index, message in enumerate(appended):

        def change(text: str, index: int = index) -> str:
            mark = words.mark(len(marks))
            marks.append((mark, index))
            return mark

        before = len(marks)
        changed = with_texts(message, change)
        if len(marks) == before:  # no text at all, such as an image on its own
            changed = {**message, "content": change("")} if not message.get("content") else changed
        messages.append(changed)
    return messages, marks
