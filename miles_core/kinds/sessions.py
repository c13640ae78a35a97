"""Sessions as the rollout sees them: a conversation that is continued token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from miles_core.types import MAIN_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.types import Generation, Message, Reward, Sample, SamplingParams, Status, TurnRecord

Tools: TypeAlias = "Sequence[Mapping[str, Any]]"
"""Tools that the policy may call, each ``{"type": "function", "function": {"name", "description", "parameters"}}``."""

OnTokens: TypeAlias = "Callable[[Sequence[int]], None]"
"""Gets output ids as they come, each once and in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A conversation ready to be continued: the ids that the engine gets, int32 ``[T]``, the last ones of them new.

    ``parent`` is the stored turn that it continues, ``None`` for a first one; only its session looks into it.
    ``parse_calls`` is unset where the answer stays text although there are tools.
    """

    messages: tuple[Message, ...]
    input_ids: NDArray[np.int32]
    appended_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()
    parse_calls: bool = True
    parent: object = None


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How a client asks for a turn; ``None`` leaves it to the session.

    ``stop`` are texts that end the turn, ``json_schema`` a schema that the answer must fit, where the engine can.
    """

    temperature: float | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: str | None = None


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
    def appended(self) -> tuple[Message, ...]:
        """The messages between the turn before and this one."""

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools of its conversation."""

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
    """``[session] pick``: the turns whose conversations become samples, of one or more in the order stored.

    What several conversations share is trained once, with the first of them.
    """

    def __call__(self, turns: Sequence[StoredTurn], /) -> StoredTurn | Sequence[StoredTurn]:
        """One of ``turns``, or some of them."""


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A generated turn that a renderer continues.

    ``messages`` are those before ``response``; ``output_ids`` what was sampled, with the stop token at its end where
    ``stop`` names one, ``None`` for a turn that was cut or ended by a text.
    """

    messages: tuple[Message, ...]
    response: Message
    output_ids: tuple[int, ...]
    stop: int | None
    tools: tuple[Mapping[str, Any], ...] = ()


class Renderer(Protocol):
    """``[session] renderer``: writes conversations as ids, in place of what is derived from the chat template.

    The attribute is called with the Hugging Face tokenizer when a run starts, more than once, and returns a renderer,
    which keeps nothing between calls.
    """

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Ids of a first prompt, up to where the policy begins to speak."""

    def boundary(self, turn: GeneratedTurn, appended: Sequence[Message]) -> Sequence[int]:
        """Ids between the last sampled one and where the policy speaks again."""


class ToolCallParser(Protocol):
    """``[session] tool_calls``: finds the calls in what the policy wrote.

    Attributes that it may have, for streams: ``starts``, a tuple of texts with which a call may begin, without which
    nothing is streamed before the turn is over; ``whole``, that a text is either all calls or none.
    """

    def __call__(self, text: str, /) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The text beside the calls, and the calls, each ``{"name", "arguments"}`` with the arguments as JSON text.

        A call may have an ``id``. What is no call stays text, unchanged.
        """


class ReasoningParser(Protocol):
    """``[session] reasoning``: parts what the policy thought from what it said.

    Attributes that it may have, for streams: ``ends``, the text that ends the reasoning, without which nothing is
    streamed before the turn is over; ``starts``, texts with which reasoning begins; ``marks``, texts that are never
    content; ``again``, that there may be more reasoning behind its end.
    """

    def __call__(self, text: str, /) -> tuple[str | None, str]:
        """The reasoning, ``None`` where there is none, and the rest."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is trained of a session: the messages up to a turn, and the stored turns among them, in order."""

    messages: tuple[Message, ...]
    turns: tuple[object, ...]


class Session(Protocol):
    """The conversations of one agent; stored tokens are never rendered or tokenized again."""

    def prepare(self, messages: Sequence[Message], tools: Tools = ()) -> Prompt:
        """Attach ``messages`` to the deepest stored turn with these tools that they continue; tokenize what is new.

        Raises:
            SessionError: if the chat template cannot append them token by token.
        """

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        keep_aborted: bool = True,
    ) -> Turn:
        """Generate the turn after a prompt that this session prepared and store it, whatever was stored since.

        An aborted turn is stored only where ``keep_aborted`` is set.
        """

    async def resume(self, turn: Turn) -> Turn:
        """Continue an aborted turn where it stopped; the whole of it, stored beside the aborted one.

        It is sampled as before, up to what its ``max_new_tokens`` leave, and has a span for each policy version.

        Raises:
            SessionError: if the turn is not this session's, was not aborted, or has no room left.
        """

    def conversations(self, turn: Turn | None = None) -> tuple[Conversation, ...]:
        """The conversation up to ``turn``, or those that ``[session] pick`` chooses; none before the first turn.

        Raises:
            SessionError: if the choice fails, or is none of the stored turns.
        """

    def samples(
        self,
        *,
        status: Status,
        records: Mapping[object, TurnRecord] | None = None,
        reward: Reward | None = None,
        turn: Turn | None = None,
    ) -> tuple[Sample, ...]:
        """The conversations of :meth:`conversations` as training sequences; each generated token is trained once.

        ``records`` replace those that the session makes of its turns, by ``Turn.stored``. Turns whose sampling is not
        trainable have a loss mask of 0.

        Raises:
            SessionError: as :meth:`conversations`.
        """


class SessionFactory(Protocol):
    """Opens sessions."""

    def __call__(self, *, task_id: str, group_id: str, trajectory_id: str, agent_id: str = MAIN_AGENT) -> Session:
        """A new, empty session of one agent of a trajectory."""
