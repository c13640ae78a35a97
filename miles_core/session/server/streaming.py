"""An answer that goes out while it is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from miles_core.session.server.failures import client_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from miles_core.session.parsing.reader import Delta
    from miles_core.session.server.answer import Answer
    from miles_core.session.server.dialect import StreamWriter
    from miles_core.session.server.exchange import Exchange
    from miles_core.session.server.responses import EventStream


class LiveAnswer:
    """Generates an answer and writes what comes of it, as fast as the client reads."""

    def __init__(self, exchange: Exchange, writer: StreamWriter, events: EventStream) -> None:
        self._exchange = exchange
        self._writer = writer
        self._events = events
        session, stop = exchange.served.session, exchange.request.sampling.stop
        self._readers = [session.reader(exchange.prompt, stop) for _ in range(exchange.request.n)]
        self._fresh: list[list[int]] = [[] for _ in self._readers]
        self._news = anyio.Event()
        self._answer: Answer | None = None
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Write the whole answer.

        Raises:
            Exception: what generation raises, if nothing was written yet; later it is an event of the stream.
        """
        try:
            await self._write_all()
        except Exception as error:
            if not self._events.started:
                raise
            told = client_error(error)
            await self._events.write(self._writer.error(told.status, told.text, code=told.code, param=told.param))
        await self._events.end()

    async def _write_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._generate)
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the ExceptionGroup
                self._failure = error
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        assert self._answer is not None
        for choice in self._answer.choices:
            await self._write(choice.index, self._readers[choice.index].finish(choice.message))
        await self._events.write(self._writer.finish(self._answer))

    async def _follow(self) -> None:
        """Write what tokens say until generation has ended."""
        while self._answer is None and self._failure is None:
            await self._news.wait()
            self._news = anyio.Event()
            await self._write_deltas()

    async def _generate(self) -> None:
        try:
            self._answer = await self._exchange.answer(self._take)
        except Exception as error:  # noqa: BLE001 - raised again by _write_all
            self._failure = error
        self._news.set()

    def _take(self, index: int, ids: Sequence[int]) -> None:
        self._fresh[index] += ids
        self._news.set()

    async def _write_deltas(self) -> None:
        """What the tokens say that came since the last time, in one piece."""
        for index, fresh in enumerate(self._fresh):
            if fresh:
                self._fresh[index] = []
                await self._write(index, self._readers[index].feed(fresh))

    async def _write(self, index: int, delta: Delta) -> None:
        await self._events.write(self._events_of(index, delta))

    def _events_of(self, index: int, delta: Delta) -> Iterator[bytes]:
        if not self._events.started:
            yield from self._writer.start(len(self._exchange.prompt.input_ids))
        if delta.reasoning or delta.content or delta.tool_calls:
            yield from self._writer.delta(index, delta)
