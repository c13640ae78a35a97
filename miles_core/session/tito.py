"""Token in, token out: what follows a generated turn is derived from the model's own chat template.

``next prompt = stored ids + closing tokens that are missing + ids of the appended messages``. Only the text after
the assistant's turn is taken from a render, so a template that rewrites history changes nothing that was generated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.tokenizer import ChatTokenizer

# Texts that no template changes and no conversation holds; letters only, so that no template trims it.
SENTINEL = "qSENTINELq"
MARK = "qAPPENDED{}q"


class TokenInTokenOut:
    """Tokenizes a conversation piece by piece, with the tools that it was opened with."""

    def __init__(self, tokenizer: ChatTokenizer, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._tokenizer = tokenizer
        self._tools = tuple(tools)

    def initial(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole prompt, generation prompt included."""
        text = self._tokenizer.render(messages, tools=self._tools, add_generation_prompt=True)
        return self._tokenizer.encode(text)

    def message(self, output_ids: Sequence[int], stop: int | None) -> Message:
        """The assistant message that generated ids spell, without the stop token that ended it."""
        spoken = output_ids[:-1] if stop is not None and output_ids and output_ids[-1] == stop else output_ids
        return Message("assistant", self._tokenizer.decode(spoken))

    def continuation(self, history: Sequence[Message], appended: Sequence[Message], *, stop: int | None) -> list[int]:
        """Ids between the last generated token and the next turn's first one.

        ``history`` ends in the generated assistant message; ``stop`` is the stop token that ended it, or ``None``
        where it was cut.

        Raises:
            SessionError: if the template drops, doubles or moves the appended messages.
        """
        tail = self._tail(history, appended)
        head = self._head(history, appended, tail)
        if stop is None:
            return self._encode_after(self._tokenizer.tokenizer.eos_token, tail)
        stop_text = self._tokenizer.decode([stop])
        at = head.find(stop_text)
        if at < 0:  # the sampled stop stands in for the close that history shows
            close = _common_prefix(head, self._tail(history, ()))
            return self._encode_after(stop_text, tail[close:])
        return self._encode_after(stop_text, tail[at + len(stop_text) :])

    def _tail(self, history: Sequence[Message], appended: Sequence[Message]) -> str:
        """What the template writes after the last assistant turn's content."""
        stub = replace(history[-1], content=SENTINEL, extra={})
        text = self._tokenizer.render(
            [*history[:-1], stub, *appended], tools=self._tools, add_generation_prompt=bool(appended)
        )
        if text.count(SENTINEL) != 1:
            raise SessionError(
                f"the chat template shows the assistant's turn {text.count(SENTINEL)} times; expected once",
                remedy="This template cannot be continued token by token; use another template for this model.",
            )
        return text.partition(SENTINEL)[2]

    def _head(self, history: Sequence[Message], appended: Sequence[Message], tail: str) -> str:
        """What the template writes between the assistant's turn and the first appended text.

        Found with marked stand-ins for the appended messages, since a real text may look like the template's own.
        Every one must come once and in order.
        """
        marked = [replace(message, content=MARK.format(index)) for index, message in enumerate(appended)]
        shape = self._tail(history, marked)
        at = 0
        for index, message in enumerate(appended):
            mark = MARK.format(index)
            found = shape.find(mark, at)
            if found < 0 or shape.count(mark) != 1:
                raise SessionError(
                    f"the chat template drops, doubles or moves a {message.role!r} message after the assistant's turn",
                    remedy=f"Let the environment answer in a role that the template can append, not {message.role!r}.",
                )
            at = found + len(mark)
        head = shape.partition(MARK.format(0))[0]
        if not tail.startswith(head):
            raise SessionError(f"the chat template writes {appended[0].role!r} messages differently for some contents")
        return head

    def _encode_after(self, anchor: str | None, text: str) -> list[int]:
        """Ids of ``text`` as they are after a special token: some tokenizers change the first ids otherwise."""
        if not anchor:
            return self._tokenizer.encode(text)
        lead = self._tokenizer.encode(anchor)
        ids = self._tokenizer.encode(anchor + text)
        if ids[: len(lead)] != lead:
            raise SessionError(
                f"the tokenizer merges {anchor!r} with the text that follows it",
                remedy="Declare the stop token as a special token of the tokenizer.",
            )
        return ids[len(lead) :]


def _common_prefix(left: str, right: str) -> int:
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def check_append_only(tokenizer: ChatTokenizer, roles: Sequence[str]) -> None:
    """Prove at start-up that the template can append each of ``roles`` after a generated turn.

    Raises:
        SessionError: naming the role, before a rollout is spent on it.
    """
    tito = TokenInTokenOut(tokenizer)
    history = [Message("user", "one"), Message("assistant", "two")]
    if not tokenizer.stop_token_ids:
        raise SessionError(
            "the model directory names no stop token",
            remedy="Set eos_token_id in generation_config.json or eos_token in tokenizer_config.json.",
        )
    for role in roles:
        for stop in (*tokenizer.stop_token_ids, None):
            if not tito.continuation(history, [Message(role, "three")], stop=stop):
                raise SessionError(f"the chat template appends nothing for a {role!r} message")
