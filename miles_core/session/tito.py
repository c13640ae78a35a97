"""Token in, token out: what follows a generated turn is derived from the model's own chat template.

``next prompt = stored ids + closing tokens that are missing + ids of the appended messages``. Only the text after
the assistant's turn is taken from a render, so a template that rewrites history changes nothing that was generated.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template.histories import ENDS
from miles_core.session.template.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from miles_core.kinds.sessions import GeneratedTurn, Tools
    from miles_core.session.template.histories import History
    from miles_core.session.template.ids import IdDeriver
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Message


class TemplateRenderer:
    """The built-in :class:`miles_core.kinds.sessions.Renderer`: writes conversations as the chat template does.

    ``clock`` is the time that templates are told which ask for it; ``None`` is the machine's at every call.
    """

    def __init__(self, tokenizer: ChatTokenizer, clock: datetime | None = None) -> None:
        self._tokenizer = tokenizer
        self.clock = clock
        self._derivers: dict[bool, IdDeriver] = {}

    def prompt(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """Ids of a first prompt, generation prompt included.

        Raises:
            SessionError: if the template refuses the conversation.
        """
        deriver = self._deriver(tools)

        def derive() -> Sequence[int]:
            return deriver.prompt([message.to_chat() for message in messages], tools)

        clock = deriver.text.template.clock
        if clock is None and deriver.text.template.reads_clock:
            return list(derive())  # another time next time
        return self._tokenizer.remembered(messages, (json.dumps(list(tools), default=str), clock), derive)

    def boundary(self, turn: GeneratedTurn, appended: Sequence[Message]) -> list[int]:
        """Ids between the last generated token and the next turn's first one.

        A stop that opens another turn than the appended one is kept: stored ids only grow.

        Raises:
            SessionError: if the template drops, doubles or moves the appended messages.
        """
        deriver, asked = self._deriver(turn.tools), self._asked(turn, appended)
        stand_in = _stand_in(deriver, turn, asked)
        if stand_in is not None:
            with suppress(SessionError):  # which names roles: those of the conversation itself are told below
                return list(deriver.boundary(replace(asked, messages=stand_in)).ids)
        history = tuple(message.to_chat() for message in turn.messages)
        return list(deriver.boundary(replace(asked, messages=history)).ids)

    def _asked(self, turn: GeneratedTurn, appended: Sequence[Message]) -> Turn:
        """The question without its history; what was generated is read from the ids, the response may be parsed."""
        stop = None if turn.stop is None else self._tokenizer.decode([turn.stop])
        spoken = turn.output_ids if turn.stop is None else turn.output_ids[:-1]
        return Turn(
            messages=(),
            generated=self._tokenizer.decode(spoken) + (stop or ""),
            stop=stop,
            appended=tuple(message.to_chat() for message in appended),
            tools=tuple(turn.tools),
            calls=turn.response.tool_calls,
        )

    def _deriver(self, tools: Tools) -> IdDeriver:
        has_tools = bool(tools)
        if has_tools not in self._derivers:
            self._derivers[has_tools] = self._tokenizer.deriver(tools=has_tools).at(self.clock)
        return self._derivers[has_tools]


def _stand_in(deriver: IdDeriver, turn: GeneratedTurn, asked: Turn) -> History | None:
    """A short conversation in place of the whole one, where it was proved to make no difference."""
    tried = turn.messages and turn.messages[-1].role in ENDS and all(isinstance(m.content, str) for m in turn.messages)
    return deriver.independence.of(asked).stand_in if tried else None
