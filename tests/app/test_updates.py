"""Updates of a fleet: all engines after a step, those that come back while the trainer rests, never while it trains."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from miles_core.app.updates import FleetUpdates
from miles_core.errors import RolloutError
from miles_core.types import Manifest
from miles_core.weights.publish import PublishResult

from .engine_processes import Engines

pytestmark = pytest.mark.anyio


@pytest.fixture
def engines(tmp_path: Path, monkeypatch) -> Engines:
    monkeypatch.setattr("miles_core.app.fleet.BACK_OFF_SECONDS", 0.01)
    return Engines(tmp_path)


class Publisher:
    """Notes what is published to whom."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[str, ...] | None]] = []
        self.begun = anyio.Event()
        self.may_end = anyio.Event()
        self.may_end.set()

    async def publish(self, version, engines=None) -> PublishResult:
        self.begun.set()
        await self.may_end.wait()
        self.calls.append((version, engines))
        return PublishResult(Manifest(version, 1, 4, ("x",)), 0.0)


class Lengths:
    async def accept_length(self, urls):
        return 2.5 if urls else None


async def test_an_engine_that_comes_back_while_the_trainer_rests_gets_its_weights(engines: Engines) -> None:
    fleet, publisher = engines.fleet(["", ""]), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths())
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.publish(1)
        with anyio.fail_after(60):
            async with updates.kept_up(1):
                engines.kill("engine-0")
                await publisher_called(publisher, 2)
        assert publisher.calls == [(1, None), (1, (fleet.named_urls["engine-0"],))]
        assert len(engines.router.urls) == 2
        assert await updates.metrics() == {"engine/restarts": 1.0, "engine/accept_length": 2.5}


async def test_an_engine_that_comes_back_while_the_trainer_trains_waits_for_the_next_update(engines: Engines) -> None:
    fleet, publisher = engines.fleet(), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths())
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.publish(1)
        engines.kill("engine-0")
        with anyio.fail_after(60):
            await fleet.fell_behind()
        await anyio.wait_all_tasks_blocked()
        assert publisher.calls == [(1, None)]
        assert engines.router.urls == []
        await updates.publish(2)
        assert publisher.calls == [(1, None), (2, None)]
        assert engines.router.urls == list(fleet.urls)


async def test_an_update_that_has_begun_ends_before_the_trainer_goes_on(engines: Engines) -> None:
    fleet, publisher = engines.fleet(foreign=True), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths())
    publisher.may_end = anyio.Event()
    async with fleet.running(), anyio.create_task_group() as tasks:
        await fleet.open(engines.router)
        left = anyio.Event()

        async def rest() -> None:
            async with updates.kept_up(0):
                await publisher.begun.wait()
            left.set()

        tasks.start_soon(rest)
        with anyio.fail_after(60):
            await publisher.begun.wait()
            await anyio.wait_all_tasks_blocked()
            assert not left.is_set()
            publisher.may_end.set()
            await left.wait()
        assert publisher.calls == [(0, fleet.urls)]
        assert engines.router.urls == list(fleet.urls)


async def test_what_fails_while_the_trainer_rests_is_raised_as_it_is(engines: Engines) -> None:
    fleet = engines.fleet()
    updates = FleetUpdates(fleet, Publisher(), Lengths())
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(RolloutError, match="no score"):
            async with updates.kept_up(0):
                raise RolloutError("no score")


async def test_nothing_is_published_to_engines_that_are_up_to_date(engines: Engines) -> None:
    fleet, publisher = engines.fleet(), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths())
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.catch_up(0)
        async with updates.kept_up(0):
            await anyio.wait_all_tasks_blocked()
    assert publisher.calls == []


async def publisher_called(publisher: Publisher, times: int) -> None:
    while len(publisher.calls) < times:
        await anyio.sleep(0.01)
