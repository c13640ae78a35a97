"""One cause out of the exception groups that task groups raise."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import cause_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import TaskGroup


@contextmanager
def single_error() -> Iterator[None]:
    """Raise one exception instead of a group: the first of ours, else the first; the group stays its context."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise cause_of(group) from group


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group that raises the exception of its own block as it is; what its tasks raise comes in a group."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
