"""What a client asks for, whatever dialect it speaks, and how it is told that it asked wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.errors import MilesError
from miles_core.kinds.sessions import SamplingRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.session.server.answer import Answer
    from miles_core.types import Message


class ClientError(MilesError):
    """A request that is answered with an error.

    ``status`` is that of HTTP, ``param`` the field that is wrong, such as ``messages[2].content``, ``code`` a word that
    programs look at, such as ``context_length_exceeded``. ``retry_after``, in seconds, becomes a header.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def text(self) -> str:
        """Message and remedy on one line."""
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for ``n`` turns after ``messages``.

    ``tools`` are in OpenAI's nested form, ``{"type": "function", "function": {...}}``; ``parse_calls`` is unset where
    the answer must stay text although there are tools (a ``tool_choice`` of ``"none"``). ``logprobs`` and
    ``include_usage`` only say what the reply shows. ``model`` is echoed. ``answered`` is called with the answer once
    all of its turns are stored, before the reply goes out: a dialect whose clients name earlier answers remembers them
    there.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    n: int = 1
    stream: bool = False
    logprobs: bool = False
    include_usage: bool = False
    model: str = ""
    parse_calls: bool = True
    answered: Callable[[Answer], None] | None = None
