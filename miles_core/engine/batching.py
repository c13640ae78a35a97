"""Short requests of one moment travel together: one HTTP request instead of hundreds.

A batch is answered when its last member is done, so only requests whose members cannot wait long for each other are
joined: those that may generate few tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio

from miles_core.errors import EngineError, EngineRequestError, RoutingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from miles_core.engine.client import Failure, HttpEngineClient
    from miles_core.types import GenerateRequest, Generation

    Waiting: TypeAlias = tuple[GenerateRequest, asyncio.Future[Generation]]


class BatchingClient:
    """Implements ``EngineClient`` on another one; open inside ``async with``.

    Requests of at most ``max_new_tokens`` that are made in one turn of the event loop are sent as one batch for each of
    ``engines`` servers, with at most ``max_prompt_tokens`` of prompts in each. Longer and streamed ones are sent by
    themselves at once. A cancelled call returns at once; the engine drops its request when all of the batch were
    cancelled, and otherwise generates to its end, which is near.
    """

    def __init__(
        self,
        client: HttpEngineClient,
        *,
        engines: int = 1,
        max_new_tokens: int = 64,
        max_prompt_tokens: int = 1 << 16,
    ) -> None:
        self._client = client
        self._engines = engines
        self._max_new_tokens = max_new_tokens
        self._max_prompt_tokens = max_prompt_tokens
        self._waiting: list[Waiting] = []
        self._tasks = anyio.create_task_group()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._closed = True
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, traceback)

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Generate from token ids; ``on_tokens`` gets the output ids as they come.

        Raises:
            EngineRequestError: if the request is invalid.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine failed.
        """
        if on_tokens is not None or request.sampling.max_new_tokens > self._max_new_tokens:
            return await self._client.generate(request, on_tokens=on_tokens)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send_all)
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((request, future))
        return await future

    def _send_all(self) -> None:
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        if self._closed:
            _fail(waiting)
            return
        size = max(1, -(-len(waiting) // self._engines))
        for at in range(0, len(waiting), size):
            for batch in self._split(waiting[at : at + size]):
                self._tasks.start_soon(self._send, batch)

    def _split(self, waiting: Sequence[Waiting]) -> Iterator[list[Waiting]]:
        """Batches of alike requests, in order, within the bound on prompts."""
        batch: list[Waiting] = []
        tokens = 0
        for one in waiting:
            request = one[0]
            tokens += len(request.input_ids)
            alike = not batch or batch[0][0].return_routed_experts == request.return_routed_experts
            if batch and (tokens > self._max_prompt_tokens or not alike):
                yield batch
                batch, tokens = [], len(request.input_ids)
            batch.append(one)
        if batch:
            yield batch

    async def _send(self, batch: list[Waiting]) -> None:
        with anyio.CancelScope() as scope:
            left = len(batch)

            def gone(future: asyncio.Future[Generation]) -> None:
                nonlocal left
                left -= future.cancelled()
                if not left:
                    scope.cancel()

            for _, future in batch:
                future.add_done_callback(gone)
            try:
                results = await self._results([request for request, _ in batch])
                for (_, future), result in zip(batch, results, strict=True):
                    _settle(future, result)
            finally:
                _fail(batch)

    async def _results(self, requests: Sequence[GenerateRequest]) -> Sequence[Generation | Failure]:
        if len(requests) > 1:
            try:
                return await self._client.generate_batch(requests)
            except EngineRequestError:
                pass  # some of them are refused: alone, each gets its own answer
            except (EngineError, RoutingError) as error:
                return [type(error)(error.message, remedy=error.remedy) for _ in requests]
        results: dict[int, Generation | Failure] = {}

        async def one(index: int) -> None:
            try:
                results[index] = await self._client.generate(requests[index])
            except (EngineError, RoutingError) as error:
                results[index] = error

        async with anyio.create_task_group() as tasks:
            for index in range(len(requests)):
                tasks.start_soon(one, index)
        return [results[index] for index in range(len(requests))]


def _fail(waiting: Sequence[Waiting]) -> None:
    """Let none wait for ever, whatever happened."""
    for _, future in waiting:
        _settle(future, EngineError("the engine client was closed"))


def _settle(future: asyncio.Future[Generation], result: Generation | Failure) -> None:
    if future.done():
        return
    if isinstance(result, EngineError | RoutingError):
        future.set_exception(result)
    else:
        future.set_result(result)
