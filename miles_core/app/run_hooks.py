"""Tells plugins that a run has started, and once how it ended, whatever ended it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import cause_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from miles_core.kinds.hooks import RunInfo
    from miles_core.plugins.lifecycle.hooks import Hooks


class RunHooks:
    """The hooks around one run in the driver."""

    def __init__(self, hooks: Hooks, run: RunInfo) -> None:
        self._hooks = hooks
        self._run = run
        self._started = False

    async def started(self) -> None:
        """Everything runs, and the first step begins."""
        self._started = True
        await self._hooks.observe("miles_run_started", run=self._run)

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        """All of a run in the driver; at its end, if it had started, plugins learn how it ended."""
        await self._hooks.observe("miles_process_started", role="driver", rank=0)
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = _cause(caught)
            raise
        finally:
            if self._started:
                with anyio.CancelScope(shield=True):
                    await self._hooks.observe("miles_run_finished", run=self._run, error=error)


def _cause(error: BaseException) -> BaseException:
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return KeyboardInterrupt("the user ended the run")  # nothing else cancels a whole run
    return cause_of(error)
