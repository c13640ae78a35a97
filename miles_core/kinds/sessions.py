"""Sessions as the rollout sees them: a conversation that is continued token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Generation, Message, Reward, Sample, SamplingParams, Status, TurnRecord


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation ready to be continued: the ids that the engine gets and how many of them are new.

    ``parent`` is the stored turn that it continues, ``None`` for a first one; only its session looks into it.
    """

    messages: tuple[Message, ...]
    input_ids: tuple[int, ...]
    appended_tokens: int
    parent: object = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation: the message that its tokens spell and what the engine returned.

    ``stored`` is the turn as its session keeps it; only the session looks into it.
    """

    message: Message
    generation: Generation
    stored: object = None


class Session(Protocol):
    """One conversation; stored tokens are never rendered or tokenized again."""

    def prepare(self, messages: Sequence[Message]) -> Prompt:
        """Attach ``messages`` to the deepest stored turn that they continue and tokenize only what is new.

        Raises:
            SessionError: if the chat template cannot append them token by token.
        """

    async def generate(self, prompt: Prompt, sampling: SamplingParams) -> Turn:
        """Generate the turn after a prompt that this session prepared and store it, whatever was stored since."""

    async def resume(self, turn: Turn) -> Turn:
        """Continue an aborted turn where it stopped; the whole of it, stored beside the aborted one.

        It is sampled as before, up to what its ``max_new_tokens`` leave, and has a span for each policy version.

        Raises:
            SessionError: if the turn is not this session's, was not aborted, or has no room left.
        """

    def sample(self, *, status: Status, turns: Sequence[TurnRecord], reward: Reward | None = None) -> Sample:
        """The conversation that ends in the last stored turn, as one training sequence."""


class SessionFactory(Protocol):
    """Opens sessions."""

    def __call__(self, *, task_id: str, group_id: str, trajectory_id: str) -> Session:
        """A new, empty session of one trajectory."""
