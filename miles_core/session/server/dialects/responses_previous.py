"""Responses that later ones of the same session name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.session.server.fields import shown
from miles_core.session.server.request import ClientError
from miles_core.session.tree import TurnNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.session.registry import OpenSession
    from miles_core.session.server.answer import Answer
    from miles_core.types import Message


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A response: its turn, and whether the first message of its conversation came from ``instructions``."""

    node: TurnNode
    instructed: bool


def remembering(opened: OpenSession, *, instructed: bool) -> Callable[[Answer], None]:
    """What remembers an answer in its session."""

    def remember(answer: Answer) -> None:
        stored = answer.choices[0].turn.stored
        if isinstance(stored, TurnNode):
            opened.answers[f"resp_{answer.id}"] = _Remembered(stored, instructed)

    return remember


def previous_messages(name: str | None, opened: OpenSession) -> list[Message]:
    """The conversation up to and with the response of this name, without instructions: they belong to one request.

    Raises:
        ClientError: if the session does not remember it.
    """
    if name is None:
        return []
    found = opened.answers.get(name)
    if not isinstance(found, _Remembered):
        raise ClientError(
            f"this session has no response {shown(name)}",
            param="previous_response_id",
            code="previous_response_not_found",
            remedy="Name one that was made in this session without store = false, or send its items.",
        )
    return list(found.node.messages())[1 if found.instructed else 0 :]
