"""``[session] renderer``: a renderer of somebody else's, with what it returns and raises checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.errors import MilesError, SessionError
from miles_core.lib.error_text import error_text, value_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.kinds.sessions import GeneratedTurn, Renderer, Tools
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import Message


class RendererError(SessionError):
    """A renderer is broken: the messages are not at fault, and no other branch would help."""


class NamedRenderer:
    """Implements ``Renderer`` on another one, which errors call ``name``; its ids are of a known vocabulary."""

    def __init__(self, renderer: Renderer, name: str, vocab_size: int) -> None:
        self._renderer, self._name, self._vocab_size = renderer, name, vocab_size

    def prompt(self, messages: Sequence[Message], tools: Tools) -> Sequence[int]:
        """Ids of a first prompt.

        Raises:
            RendererError: if the renderer fails, or returns no ids.
            MilesError: what the renderer itself raises of these, such as a SessionError for messages that it refuses.
        """
        ids = self._ask("prompt", messages, tools)
        if not ids:
            raise RendererError(f"session.renderer: {self._name}.prompt() returned no ids")
        return ids

    def boundary(self, turn: GeneratedTurn, appended: Sequence[Message]) -> Sequence[int]:
        """Ids that follow a generated turn.

        Raises:
            RendererError: if the renderer fails, or returns something else than ids.
            MilesError: what the renderer itself raises of these, such as a SessionError for messages that it refuses.
        """
        return self._ask("boundary", turn, appended)

    def _ask(self, method: str, *arguments: Any) -> list[int]:
        try:
            answer = getattr(self._renderer, method)(*arguments)
        except MilesError:
            raise
        except (Exception, SystemExit) as error:
            raise RendererError(f"session.renderer: {self._name}.{method}() raised {error_text(error)}") from error
        try:
            ids = np.asarray(answer)
        except (ValueError, TypeError):
            ids = np.zeros((0, 0))  # ragged
        whole = ids.ndim == 1 and (not ids.size or ids.dtype.kind in "iu")
        if not whole or ((ids < 0) | (ids >= self._vocab_size)).any():
            raise RendererError(
                f"session.renderer: {self._name}.{method}() must return token ids below {self._vocab_size}; "
                f"got {value_text(answer)}"
            )
        return [int(token) for token in ids]


def own_renderer(factory: Callable[[Any], Any], name: str, tokenizer: ChatTokenizer) -> NamedRenderer:
    """The renderer that ``factory`` makes for a tokenizer.

    Raises:
        SessionError: if it fails, or makes something else.
    """
    try:
        made = factory(tokenizer.tokenizer)
    except (Exception, SystemExit) as error:
        raise SessionError(f"session.renderer = {name!r} raised {error_text(error)}") from error
    missing = [method for method in ("prompt", "boundary") if not callable(getattr(made, method, None))]
    if missing:
        raise SessionError(
            f"session.renderer = {name!r} must make a renderer; {value_text(made)} has no {missing[0]}()",
            remedy="Return an object with prompt(messages, tools) and boundary(turn, appended).",
        )
    return NamedRenderer(made, name, tokenizer.vocab_size)
