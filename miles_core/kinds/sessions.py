"""Sessions as the rollout sees them: a conversation that is continued token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


class StoredTurn(Protocol):
    """A turn as a session keeps it, for ``[session] pick``; ``parent`` is the turn that it continues."""

    @property
    def parent(self) -> StoredTurn | None:
        """The turn before it in its conversation; ``None`` for a first one."""

    @property
    def response(self) -> Message:
        """What the policy said."""

    @property
    def length(self) -> int:
        """Tokens of the conversation up to and with this turn."""

    def messages(self) -> Iterator[Message]:
        """The conversation up to and with this turn."""


class MessageMatch(Protocol):
    """``[session] match``: whether a given message stands for a stored one; asked only where the two differ.

    The tokens of a conversation that is continued are always the stored ones.
    """

    def __call__(self, stored: Message, given: Message, /) -> bool:
        """Whether ``given`` is ``stored`` as a client sends it back."""


class TurnPick(Protocol):
    """``[session] pick``: the turn whose conversation becomes the sample, of one or more in the order stored."""

    def __call__(self, turns: Sequence[StoredTurn], /) -> StoredTurn:
        """One of ``turns``."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is trained of a session: the messages up to a turn, and the stored turns among them, in order."""

    messages: tuple[Message, ...]
    turns: tuple[object, ...]


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

    def picked(self, turn: Turn | None = None) -> Conversation:
        """The conversation up to ``turn``, or to the one that ``[session] pick`` chooses; empty before the first turn.

        Raises:
            SessionError: if the choice fails, or is none of the stored turns.
        """

    def sample(
        self,
        *,
        status: Status,
        turns: Sequence[TurnRecord],
        reward: Reward | None = None,
        conversation: Conversation | None = None,
    ) -> Sample:
        """A conversation as one training sequence, by default the picked one; ``turns`` are the records of its turns.

        Raises:
            SessionError: as :meth:`picked`.
        """


class SessionFactory(Protocol):
    """Opens sessions."""

    def __call__(self, *, task_id: str, group_id: str, trajectory_id: str) -> Session:
        """A new, empty session of one trajectory."""
