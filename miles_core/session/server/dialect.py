"""What a dialect has to say: how it reads requests, and how it writes answers, streams and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from miles_core.session.parsing.reader import Delta
    from miles_core.session.registry import OpenSession
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.request import ChatRequest


class StreamWriter(Protocol):
    """Writes one answer as server-sent events, each a ``bytes`` that ends in an empty line.

    ``start`` comes once, then any number of ``delta``; tool calls come whole, in the last one of a choice. ``finish``
    ends it, after which the connection is closed; ``error`` does so in its place.
    """

    def start(self, prompt_tokens: int) -> Iterable[bytes]:
        """The first events, when the first token has come."""

    def delta(self, index: int, delta: Delta) -> Iterable[bytes]:
        """What choice ``index`` said further."""

    def finish(self, answer: Answer) -> Iterable[bytes]:
        """The last events: what all deltas together said, reasons and usage."""

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> Iterable[bytes]:
        """The last events where generation failed midway."""


class Dialect(Protocol):
    """One API of model servers; ``path`` is where its requests are posted, such as ``/v1/chat/completions``."""

    path: str

    def parse(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The request in ``body``.

        ``opened.answers`` is a ``dict`` for what the dialect remembers by answer id; ``opened.served.session`` is the
        session.

        Raises:
            ClientError: naming the field that is wrong.
        """

    def reply(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        """The body of an answer that does not stream."""

    def stream(self, request: ChatRequest, *, id: str, created: int, model: str) -> StreamWriter:  # noqa: A002
        """A writer for an answer that streams; ``id`` is that of the :class:`Answer` that ``finish`` gets."""

    def error(self, status: int, message: str, *, code: str | None, param: str | None) -> dict[str, Any]:
        """The body of an error."""


@runtime_checkable
class CountingDialect(Dialect, Protocol):
    """A dialect that also counts the tokens of a prompt, at ``count_path``."""

    count_path: str

    def parse_count(self, body: Mapping[str, Any], opened: OpenSession) -> ChatRequest:
        """The request whose prompt is counted; only its messages and tools matter."""

    def count(self, tokens: int) -> dict[str, Any]:
        """The body of the reply."""
