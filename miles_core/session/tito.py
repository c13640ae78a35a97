"""Token in, token out: what follows a generated turn is derived from the model's own chat template.

``next prompt = stored ids + closing tokens that are missing + ids of the appended messages``. Only the text after
the assistant's turn is taken from a render, so a template that rewrites history changes nothing that was generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import SessionError
from miles_core.session.template.dummies import dummies
from miles_core.session.template.turn import Turn
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.template.ids import IdDeriver
    from miles_core.session.tokenizer import ChatTokenizer

_SHORT = 3
"""Messages of the conversations that are tried at start-up: those without calls."""


class TokenInTokenOut:
    """Tokenizes a conversation piece by piece, with the tools that it was opened with."""

    def __init__(self, tokenizer: ChatTokenizer, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._tokenizer = tokenizer
        self._tools = tuple(tools)

    def initial(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole prompt, generation prompt included."""

        def derive() -> Sequence[int]:
            return self._deriver().prompt([message.to_chat() for message in messages], self._tools)

        return list(derive()) if self._tools else self._tokenizer.remembered(messages, "prompt", derive)

    def message(self, output_ids: Sequence[int], stop: int | None) -> Message:
        """The assistant message that generated ids spell, without the stop token that ended it."""
        spoken = output_ids[:-1] if stop is not None and output_ids and output_ids[-1] == stop else output_ids
        return Message("assistant", self._tokenizer.decode(spoken))

    def continuation(self, history: Sequence[Message], appended: Sequence[Message], *, stop: int | None) -> list[int]:
        """Ids between the last generated token and the next turn's first one.

        ``history`` ends in the generated assistant message; ``stop`` is the stop token that ended it, or ``None``
        where it was cut. A stop that opens another turn than the appended one is kept: stored ids only grow.

        Raises:
            SessionError: if the template drops, doubles or moves the appended messages.
        """

        def derive() -> Sequence[int]:
            stop_text = None if stop is None else self._tokenizer.decode([stop])
            turn = Turn(
                messages=tuple(message.to_chat() for message in history[:-1]),
                generated=history[-1].text + (stop_text or ""),
                stop=stop_text,
                appended=tuple(message.to_chat() for message in appended),
                tools=self._tools,
                calls=history[-1].tool_calls,
            )
            return self._deriver().boundary(turn).ids

        if self._tools:
            return list(derive())
        return self._tokenizer.remembered((*history, *appended), (len(history), stop), derive)

    def _deriver(self) -> IdDeriver:
        return self._tokenizer.deriver(tools=bool(self._tools))


def check_append_only(tokenizer: ChatTokenizer, roles: Sequence[str]) -> None:
    """Prove at start-up that the template can append each of ``roles`` after a generated turn.

    Raises:
        SessionError: naming the role, before a rollout is spent on it.
    """
    tito = TokenInTokenOut(tokenizer)
    questions = [[Message.from_chat(each) for each in dummy] for dummy in dummies() if len(dummy) <= _SHORT]
    if not tokenizer.stop_token_ids:
        raise SessionError(
            "the model directory names no stop token",
            remedy="Set eos_token_id in generation_config.json or eos_token in tokenizer_config.json.",
        )
    for role in roles:
        for stop in (*tokenizer.stop_token_ids, None):
            for history in _accepted(tito, questions):
                if not tito.continuation(history, [Message(role, "three")], stop=stop):
                    raise SessionError(f"the chat template appends nothing for a {role!r} message")


def _accepted(tito: TokenInTokenOut, questions: Sequence[list[Message]]) -> list[list[Message]]:
    """The conversations that the template takes, answered; the first one whether it does or not."""
    answered = []
    for index, question in enumerate(questions):
        try:
            tito.initial(question)
        except SessionError:
            if index:
                continue
        answered.append([*question, Message("assistant", "two")])
    return answered
