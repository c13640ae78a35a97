"""Work that ends with the first child that dies, with the child's death as its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from miles_core.app.processes import Child

Result = TypeVar("Result")
# A dead engine is first noticed as broken requests; its exit follows within moments and is the better cause.
GRACE_SECONDS = 2.0


async def supervised(children: Sequence[Child], work: Callable[[], Awaitable[Result]]) -> Result:
    """Run ``work`` while all ``children`` live.

    Raises:
        MilesError: a child's death, even where ``work`` noticed its consequences first; else what ``work`` raised.
    """
    deaths: list[MilesError] = []
    failure: Exception | None = None
    died = anyio.Event()
    results: list[Result] = []

    async with anyio.create_task_group() as tasks:

        async def watch(child: Child) -> None:
            try:
                await child.watch()
            except MilesError as error:
                deaths.append(error)
                died.set()
                work_scope.cancel()

        with anyio.CancelScope() as work_scope:
            for child in children:
                tasks.start_soon(watch, child)
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
