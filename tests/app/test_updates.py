"""Updates of a fleet: all engines after a step, those that come back while the trainer rests, never while it trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from miles_core.app.updates import FleetUpdates
from miles_core.app.version_mark import VersionMark
from miles_core.app.weights_record import read_record
from miles_core.errors import RolloutError, WeightSyncError
from miles_core.lib.tasks import single_error
from miles_core.types import Manifest
from miles_core.weights.publish import PublishResult

from .engine_processes import Engines

pytestmark = pytest.mark.anyio


@pytest.fixture
def engines(tmp_path: Path, monkeypatch) -> Engines:
    monkeypatch.setattr("miles_core.app.fleet_servers.BACK_OFF_SECONDS", 0.01)
    return Engines(tmp_path)


class Publisher:
    """Notes what is published to whom."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[str, ...] | None]] = []
        self.begun = anyio.Event()
        self.may_end = anyio.Event()
        self.may_end.set()
        self.failures: list[Callable[[], None]] = []
        self.lost: dict[str, WeightSyncError] = {}

    async def publish(self, version, engines=None) -> PublishResult:
        self.begun.set()
        await self.may_end.wait()
        self.calls.append((version, engines))
        if self.failures:
            self.failures.pop(0)()
            raise WeightSyncError("receive of bucket 2 failed")
        return PublishResult(Manifest(version, 1, 4, {"x:float32": "00"}), {"transfer": 0.0}, self.lost)


class Lengths:
    async def accept_length(self, urls):
        return 2.5 if urls else None


async def test_an_engine_that_comes_back_while_the_trainer_rests_gets_its_weights(engines: Engines) -> None:
    fleet, publisher = engines.fleet(["", ""]), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        both = fleet.urls
        await updates.publish(1)
        with anyio.fail_after(60):
            async with updates.kept_up(1):
                engines.kill("engine-0")
                await publisher_called(publisher, 2)
        assert publisher.calls == [(1, both), (1, (fleet.named_urls["engine-0"],))]
        assert len(engines.router.urls) == 2
        assert await updates.metrics() == {"engine/restarts": 1.0, "engine/accept_length": 2.5}


async def test_an_engine_that_comes_back_while_the_trainer_trains_waits_for_the_next_update(engines: Engines) -> None:
    fleet, publisher = engines.fleet(), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        first = fleet.urls
        await updates.publish(1)
        engines.kill("engine-0")
        with anyio.fail_after(60):
            while not fleet.behind:
                await fleet.changed()
        await anyio.wait_all_tasks_blocked()
        assert publisher.calls == [(1, first)]
        assert engines.router.urls == []
        await updates.publish(2)
        assert publisher.calls == [(1, first), (2, fleet.urls)]
        assert engines.router.urls == list(fleet.urls)


async def test_an_update_that_has_begun_ends_before_the_trainer_goes_on(engines: Engines) -> None:
    fleet, publisher = engines.fleet(foreign=True), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
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
    updates = FleetUpdates(fleet, Publisher(), Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(RolloutError, match="no score"):
            async with updates.kept_up(0):
                raise RolloutError("no score")


async def test_nothing_is_published_to_engines_that_are_up_to_date(engines: Engines) -> None:
    fleet, publisher = engines.fleet(), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.catch_up(0)
        async with updates.kept_up(0):
            await anyio.wait_all_tasks_blocked()
    assert publisher.calls == []


async def test_an_engine_that_dies_while_it_catches_up_is_tried_again_in_its_next_life(
    engines: Engines, caplog
) -> None:
    fleet, publisher = engines.fleet(["", ""]), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.publish(1)
        publisher.failures = [lambda: engines.kill("engine-0")]
        with anyio.fail_after(60):
            async with updates.kept_up(1):
                engines.kill("engine-0")
                await publisher_called(publisher, 3)
        assert sorted(engines.router.urls) == sorted(fleet.urls)
        assert (len(fleet.urls), fleet.restarts) == (2, 2)
    assert "version 1 did not reach" in caplog.text
    assert "the engine-0 process died (signal SIGKILL)" in caplog.text


async def test_an_engine_that_cannot_catch_up_is_left_behind_for_some_seconds(engines: Engines, monkeypatch) -> None:
    fleet, publisher = engines.fleet(["", ""]), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.publish(1)
        publisher.failures = [lambda: None] * 2
        with anyio.fail_after(60):
            async with updates.kept_up(1):
                engines.kill("engine-0")
                await publisher_called(publisher, 2)
                await anyio.wait_all_tasks_blocked()
            assert len(publisher.calls) == 2, "not tried again at once"
            assert fleet.behind == (fleet.named_urls["engine-0"],)
            assert engines.router.urls == [fleet.named_urls["engine-1"]]
            monkeypatch.setattr("miles_core.app.updates.RETRY_SECONDS", 0.01)
            async with updates.kept_up(1):
                await publisher_called(publisher, 4)
        assert fleet.behind == ()


async def test_an_update_that_fails_with_no_other_engine_to_go_on_with_is_raised(engines: Engines) -> None:
    fleet, publisher = engines.fleet(foreign=True), Publisher()
    publisher.failures = [lambda: None]
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(WeightSyncError, match="receive of bucket 2"), anyio.fail_after(60), single_error():
            async with updates.kept_up(0):
                await anyio.sleep_forever()


async def test_acceptance_lengths_are_asked_at_once_and_an_engine_that_hangs_is_left_out(
    engines: Engines, monkeypatch
) -> None:
    monkeypatch.setattr("miles_core.app.updates.METRICS_SECONDS", 0.1)
    asked, all_asked = [], anyio.Event()

    class Hanging:
        async def accept_length(self, urls):
            asked.extend(urls)
            if len(asked) == 3:
                all_asked.set()
            await all_asked.wait()
            if "engine-0" in urls[0]:
                await anyio.sleep_forever()
            return 2.0 if "engine-1" in urls[0] else 3.0

    fleet = engines.fleet(["", "", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        with anyio.fail_after(60):
            metrics = await FleetUpdates(fleet, Publisher(), Hanging(), engines.folder).metrics()
    assert metrics["engine/accept_length"] == 2.5


async def test_a_version_is_on_the_disk_before_engines_hear_of_it(engines: Engines) -> None:
    fleet, noted = engines.fleet(), []

    class Noting(Publisher):
        async def publish(self, version, engines=None) -> PublishResult:
            noted.append((version, VersionMark(folder).read()))
            raise WeightSyncError("the trainer died")

    folder = engines.folder
    updates = FleetUpdates(fleet, Noting(), Lengths(), folder)
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(WeightSyncError):
            await updates.publish(3)
    assert noted == [(3, 3)]
    assert VersionMark(folder).read() == 3
    assert not (folder / "weights" / "manifest.json").exists(), "nothing was committed"


async def test_the_run_folder_says_which_engines_hold_the_committed_version(engines: Engines) -> None:
    fleet, publisher = engines.fleet(["", ""]), Publisher()
    updates = FleetUpdates(fleet, publisher, Lengths(), engines.folder)
    async with fleet.running():
        await fleet.open(engines.router)
        await updates.catch_up(0)
        first = read_record(engines.folder)
        assert (first.version, first.checksums) == (0, {}), "loaded from the checkpoint"
        assert {engine.name: engine.url for engine in first.engines} == fleet.named_urls
        publisher.lost = {fleet.named_urls["engine-1"]: WeightSyncError("stuck")}
        await updates.publish(1)
        second = read_record(engines.folder)
        assert (second.version, second.checksums) == (1, {"x:float32": "00"})
        assert {engine.name: engine.holds for engine in second.engines} == {"engine-0": True, "engine-1": False}
        publisher.lost = {}
        await updates.catch_up(1)
        assert [engine.holds for engine in read_record(engines.folder).engines] == [True, True]


async def publisher_called(publisher: Publisher, times: int) -> None:
    while len(publisher.calls) < times:
        await anyio.sleep(0.01)
