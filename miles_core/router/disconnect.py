"""Stop the work for a client that has gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class _Stop(Exception):  # noqa: N818 - an event, not a fault
    pass


async def run_until(event: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work``; cancel it as soon as ``event`` returns. Whatever either raises comes out as it is."""
    failure: Exception | None = None

    async def watch() -> None:
        nonlocal failure
        try:
            await event()
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group's ExceptionGroup
            failure = error
        raise _Stop

    try:
        # asyncio's group, not anyio's: this is on every request's way, and it costs 25 microseconds instead of 110.
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(watch())
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group's ExceptionGroup
                failure = error
            watcher.cancel()
    except* _Stop:
        pass
    if failure is not None:
        raise failure
