"""Where the requests of a dialect arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.server.access import session_of
from miles_core.session.server.body import read_json, while_connected
from miles_core.session.server.exchange import Exchange, prepared
from miles_core.session.server.responses import EventStream, send_json
from miles_core.session.server.streaming import LiveAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from miles_core.session.registry import OpenSession, SessionRegistry
    from miles_core.session.server.dialect import CountingDialect, Dialect, StreamWriter


class Endpoint:
    """What all endpoints of a dialect share: the session and the body."""

    def __init__(self, dialect: Dialect, registry: SessionRegistry, *, model: str, max_body_bytes: int) -> None:
        self._dialect = dialect
        self._registry = registry
        self._model = model
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            Exception: what is answered with an error, if nothing was sent yet.
        """
        # first the body: a client that is still sending reads no answer
        body = await read_json(scope, receive, self._max_body_bytes)
        await self._answer(session_of(scope, self._registry), body, receive, send)

    async def _answer(self, opened: OpenSession, body: Mapping[str, Any], receive: Receive, send: Send) -> None:
        raise NotImplementedError


class GenerateEndpoint(Endpoint):
    """Generates turns."""

    async def _answer(self, opened: OpenSession, body: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = self._dialect.parse(body, opened)
        exchange = Exchange(self._registry, opened, request, model=self._model)

        async def work() -> None:
            if request.stream:
                await LiveAnswer(exchange, self._writer(exchange), EventStream(send)).run()
            else:
                await send_json(send, 200, self._dialect.reply(await exchange.answer(), request))

        await while_connected(receive, work)

    def _writer(self, exchange: Exchange) -> StreamWriter:
        return self._dialect.stream(exchange.request, id=exchange.id, created=exchange.created, model=exchange.model)


class CountEndpoint(Endpoint):
    """Counts the tokens of a prompt; nothing is stored."""

    def __init__(self, dialect: CountingDialect, registry: SessionRegistry, *, model: str, max_body_bytes: int) -> None:
        super().__init__(dialect, registry, model=model, max_body_bytes=max_body_bytes)
        self._counting = dialect

    async def _answer(self, opened: OpenSession, body: Mapping[str, Any], receive: Receive, send: Send) -> None:
        del receive
        prompt = prepared(opened.served, self._counting.parse_count(body, opened))
        await send_json(send, 200, self._counting.count(len(prompt.input_ids)))
