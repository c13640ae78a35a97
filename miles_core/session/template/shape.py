"""The shape of a turn: what two turns have in common that differ in their texts only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from miles_core.session.template.forms import CALL_ID, NOTHING, call, tool
from miles_core.session.template.turn import ASKING, Turn

if TYPE_CHECKING:
    from miles_core.session.template.render import Chat

_FIELDS = {"role", "content", "name", "tool_call_id"}
_MOST_ALIKE = 3
"""More messages or calls of one kind in a row are taken for as many."""


@dataclass(frozen=True)
class Shape:
    """A turn without its texts: what one proof holds for.

    ``appended`` are role and fields of each message; ``calls`` is how many the turn has that the results do not tell.
    """

    appended: tuple[tuple[str, frozenset[str]], ...]
    stop: str | None
    tools: bool
    calls: int

    @classmethod
    def of(cls, turn: Turn) -> Shape | None:
        """The shape of a turn; ``None`` for one that no proof is tried for, such as one with images."""
        kinds = []
        for message in turn.appended:
            fields = frozenset(key for key, value in message.items() if value not in NOTHING)
            if not isinstance(message.get("content"), str) or not fields <= _FIELDS or message["role"] == "assistant":
                return None
            kinds.append((str(message["role"]), fields))
        calls = 0 if _answered(turn) else min(len(turn.calls), _MOST_ALIKE)
        alike = [each for _, same in groupby(kinds) for each in list(same)[:_MOST_ALIKE]]
        return cls(tuple(alike), turn.stop, bool(turn.tools), calls)

    def turn(self, content: str) -> Turn:
        """A turn of this shape whose appended messages say ``content``."""
        appended: list[Chat] = []
        results = 0
        for role, fields in self.appended:
            values = {"content": content, "name": "call", "tool_call_id": CALL_ID.format(results % 9)}
            results += role not in ASKING
            appended.append({"role": role, **{key: values[key] for key in values if key in fields}})
        calls = tuple(call(CALL_ID.format(index), "call", "x") for index in range(self.calls))
        tools = (tool("call"), tool("other")) if self.tools else ()
        return Turn((), f"two{self.stop or ''}", self.stop, tuple(appended), tools, calls)


def _answered(turn: Turn) -> bool:
    """Whether each call has its result, so that the results alone say which calls the turn has."""
    results = [message.get("tool_call_id") for message in turn.appended if message.get("role") not in ASKING]
    return bool(results) and None not in results and results == [each.get("id") for each in turn.calls]
