"""Streamed requests: what each has so far, as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import EngineError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence

    from miles_core.engine.embedded.request import ActiveRequest, Generated, Outcome


class RequestStream:
    """Iterates once over ``(index, all so far)`` of queued requests while each grows, its end last.

    Who is slow to ask gets the newest only. Whoever opened it closes it, also where it was never asked.
    """

    def __init__(
        self,
        requests: Sequence[ActiveRequest],
        updates: asyncio.Queue[tuple[ActiveRequest, Outcome]],
        abandon: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._updates = updates
        self._abandon = abandon

    async def __aiter__(self) -> AsyncIterator[tuple[int, Generated]]:
        index = {request.spec.rid: number for number, request in enumerate(self._requests)}
        unfinished = len(self._requests)
        while unfinished:
            newest = dict([await self._updates.get()])
            while not self._updates.empty():
                newest.update([self._updates.get_nowait()])
            for request, outcome in newest.items():
                if isinstance(outcome, EngineError):
                    raise outcome
                unfinished -= outcome.finish_reason is not None
                yield index[request.spec.rid], outcome

    def close(self) -> None:
        """Abort the requests that have not ended."""
        self._abandon()
