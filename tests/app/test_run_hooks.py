"""What plugins learn of a run's start and end, whatever ended it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from miles_core.app.run_hooks import RunHooks
from miles_core.errors import EngineError
from miles_core.kinds.hooks import RunInfo
from miles_core.plugins.lifecycle.hooks import Hooks
from miles_core.plugins.lifecycle.implementations import Implementation

pytestmark = pytest.mark.anyio
RUN = RunInfo("r0", Path("runs/r0"), 3)


class Watched:
    """Hooks that note what they are called with."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []
        names = {"miles_process_started": "role", "miles_run_started": "run", "miles_run_finished": "error"}
        self.hooks = RunHooks(Hooks(self._implementation(*item) for item in names.items()), RUN)

    def _implementation(self, hook: str, parameter: str) -> Implementation:
        def note(**given: object) -> None:
            self.seen.append((hook.removeprefix("miles_"), given[parameter]))

        return Implementation(hook, note, (parameter,), "watcher")


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_run_that_ends_well_has_no_error(watched: Watched) -> None:
    async with watched.hooks.lifetime():
        await watched.hooks.started()
    assert watched.seen == [("process_started", "driver"), ("run_started", RUN), ("run_finished", None)]


async def test_a_run_that_never_started_does_not_finish(watched: Watched) -> None:
    with pytest.raises(EngineError):
        async with watched.hooks.lifetime():
            raise EngineError("no engine")
    assert watched.seen == [("process_started", "driver")]


async def fail(hooks: RunHooks, error: Exception) -> None:
    async with hooks.lifetime():
        await hooks.started()
        raise error


async def test_the_first_cause_is_told_out_of_a_group(watched: Watched) -> None:
    death = EngineError("engine-0 died")
    with pytest.raises(ExceptionGroup):
        await fail(watched.hooks, ExceptionGroup("many", [ValueError("later"), ExceptionGroup("inner", [death])]))
    assert watched.seen[-1] == ("run_finished", death)


async def test_a_run_that_is_cancelled_ends_with_an_interrupt_and_is_told_all_the_same(watched: Watched) -> None:
    with anyio.CancelScope() as scope:
        async with watched.hooks.lifetime():
            await watched.hooks.started()
            scope.cancel()
            await anyio.sleep_forever()
    name, error = watched.seen[-1]
    assert name == "run_finished"
    assert isinstance(error, KeyboardInterrupt)
