"""The question: a generated turn and what follows it; and the answer: the text between the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.template.render import Chat

ASKING = ("user", "system", "developer", "assistant")
"""Roles that follow an answer; any other role, such as ``tool``, answers the calls of the turn before it."""


@dataclass(frozen=True)
class Turn:
    """A conversation up to a generated turn, and the messages that follow that turn.

    ``generated`` is the sampled text with the stop at its end; ``stop`` is the text of the stop token that was
    sampled, ``None`` for a turn that was cut. ``calls`` are the turn's calls where the caller has parsed them.
    """

    messages: tuple[Chat, ...]
    generated: str
    stop: str | None
    appended: tuple[Chat, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    calls: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def spoken(self) -> str:
        """The generated text without the stop."""
        return self.generated.removesuffix(self.stop) if self.stop else self.generated

    @property
    def answers_calls(self) -> bool:
        """Whether results of calls follow."""
        return any(message.get("role") not in ASKING for message in self.appended)


@dataclass(frozen=True)
class Boundary:
    """What follows a generated turn: ``suffix``, after the stop is taken back if ``drop_stop``.

    ``how`` says in one line where the boundary was found.
    """

    suffix: str
    drop_stop: bool
    how: str
