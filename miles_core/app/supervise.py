"""Work that ends with the first child that dies, with the child's death as its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Result = TypeVar("Result")
# A dead engine is first noticed as broken requests; its exit follows within moments and is the better cause.
GRACE_SECONDS = 2.0


class Watched(Protocol):
    """A child process, or the engines of a run."""

    async def watch(self) -> None:
        """Wait; raises a :class:`MilesError` at a death that ends the run."""


async def supervised(watched: Sequence[Watched], work: Callable[[], Awaitable[Result]]) -> Result:
    """Run ``work`` while all that is ``watched`` lives.

    Raises:
        MilesError: a death, even where ``work`` noticed its consequences first; else what ``work`` raised.
    """
    deaths: list[MilesError] = []
    failure: Exception | None = None
    died = anyio.Event()
    results: list[Result] = []

    async with anyio.create_task_group() as tasks:

        async def watch(one: Watched) -> None:
            try:
                await one.watch()
            except MilesError as error:
                deaths.append(error)
                died.set()
                work_scope.cancel()

        with anyio.CancelScope() as work_scope:
            for one in watched:
                tasks.start_soon(watch, one)
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001 - raised again below, outside the task group
                failure = error
        if failure is not None:
            with anyio.move_on_after(GRACE_SECONDS):
                await died.wait()
        tasks.cancel_scope.cancel()
    if deaths:
        raise deaths[0] from failure
    if failure is not None:
        raise failure
    return results[0]
