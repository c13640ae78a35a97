"""What a request is answered with, before a dialect writes it down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.kinds.sessions import Turn
    from miles_core.types import Message

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the turns that were generated.

    ``turn.generation`` has ids, logprobs and the engine's own ``finish_reason`` (``matched`` is the stop text where one
    ended the turn); ``turn.stored`` is the turn in its session's tree.
    """

    index: int
    turn: Turn
    decode: Callable[[Sequence[int]], str]

    @property
    def message(self) -> Message:
        """What was said: content, calls, and the reasoning in ``extra["reasoning_content"]``."""
        return self.turn.message

    @property
    def reasoning(self) -> str:
        """What was thought; empty where nothing was."""
        return str(self.message.extra.get("reasoning_content") or "")

    @property
    def finish(self) -> Finish:
        """Why the turn ended, in OpenAI's words."""
        if self.turn.generation.finish_reason.type == "length":
            return "length"
        return "tool_calls" if self.message.tool_calls else "stop"

    def tokens(self) -> list[tuple[str, float]]:
        """Text and logprob of each generated token; U+FFFD stands for a piece of a character."""
        generation = self.turn.generation
        texts = [self.decode([token]) for token in generation.output_ids.tolist()]
        return list(zip(texts, map(float, generation.logprobs), strict=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """All turns of one request; token counts are sums over them, but the prompt counts once.

    ``id`` is hexadecimal digits, before which a dialect puts its own word; ``created`` in seconds since 1970.
    """

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
