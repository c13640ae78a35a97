"""Engines that miss updates, hang or die in them: the others go on, and each comes back with the committed weights."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest

from miles_core.app.fleet import Fleet
from miles_core.app.updates import FleetUpdates
from miles_core.errors import EngineError, MilesError, WeightSyncError
from miles_core.lib.tasks import single_error
from miles_core.types import Manifest
from miles_core.weights.exchange import NoEngineError, RefusedError
from miles_core.weights.publish import PublishResult

from .engine_processes import Engines

pytestmark = pytest.mark.anyio


@pytest.fixture
def engines(tmp_path: Path, monkeypatch) -> Engines:
    monkeypatch.setattr("miles_core.app.fleet_servers.BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr("miles_core.app.outages.PROBE_SECONDS", 0.01)
    monkeypatch.setattr("miles_core.app.updates.RETRY_SECONDS", 0.01)
    return Engines(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


async def miss(fleet: Fleet, version: int, name: str, why: str = "begin failed") -> None:
    """An update that leaves one engine behind."""
    url = fleet.named_urls[name]
    async with fleet.update(version) as update:
        if url in update.urls:
            update.lost[url] = WeightSyncError(f"engine {url}: {why}")


class Publisher:
    """Does what ``acts`` say, one per call, then commits; an act returns the engines that it loses, or raises."""

    def __init__(self, *acts: Callable[[tuple[str, ...]], dict[str, WeightSyncError]]) -> None:
        self.acts = list(acts)
        self.calls: list[tuple[int, tuple[str, ...]]] = []

    async def publish(self, version, engines=None) -> PublishResult:
        await anyio.lowlevel.checkpoint()
        self.calls.append((version, engines))
        lost = self.acts.pop(0)(engines) if self.acts else {}
        return PublishResult(Manifest(version, 1, 4, {"x": "y"}), lost=lost)


def updates_of(fleet: Fleet, publisher: Publisher, engines: Engines, **options: float) -> FleetUpdates:
    return FleetUpdates(fleet, publisher, None, engines.folder, **options)


def unreachable(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
    return {url: WeightSyncError(f"engine {url}: pause failed") for url in urls}


def refused(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
    error = NoEngineError("the flush was refused")
    error.lost = {url: RefusedError("the flush was refused") for url in urls}
    raise error


async def test_an_engine_left_behind_gives_its_requests_back_and_serves_again_after_an_update(
    engines: Engines,
) -> None:
    fleet = engines.fleet(["", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        url, before = fleet.named_urls["engine-0"], fleet.outages.count
        await miss(fleet, 1, "engine-0")
        assert engines.router.events[2:] == ["drop engine-0"]
        assert list(fleet.serving_urls) == ["engine-1"]
        assert fleet.behind == (url,)
        assert fleet.outages.count == before + 1, "what failed there did not fail by itself"
        assert engines.lost == [(url, f"engine {url}: begin failed")]
        async with fleet.update(1, everyone=False) as update:
            assert update.urls == (url,)
        assert engines.router.events[3:] == ["add engine-0"]
        assert (fleet.behind, fleet.restarts) == ((), 0)


async def test_a_stopped_engine_is_ended_after_three_missed_updates_and_costs_one_warning(
    engines: Engines, caplog
) -> None:
    fleet = engines.fleet(["", ""])
    taken: list[int] = []
    with caplog.at_level(logging.INFO, "miles"):
        async with fleet.running():
            await fleet.open(engines.router)
            first = engines.stop("engine-0")
            await miss(fleet, 1, "engine-0")
            for version in (2, 3):
                async with fleet.update(version) as update:
                    taken.append(len(update.urls))
            await until(lambda: len(engines.pids("engine-0")) == 2 and len(fleet.urls) == 2)
            assert taken == [1, 1], "a silent engine that was left behind is not waited for"
            assert fleet.serving_urls.keys() == {"engine-1"}
            async with fleet.update(4):
                pass
            assert fleet.serving_urls.keys() == {"engine-0", "engine-1"}
    assert first not in [process.pid for process in engines.alive()]
    said = [record for record in caplog.records if "is left behind" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING", "WARNING", "INFO"], "one warning for each reason"


async def test_a_stopped_engine_that_goes_on_before_that_serves_again(engines: Engines) -> None:
    fleet = engines.fleet(["", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        pid = engines.stop("engine-0")
        await miss(fleet, 1, "engine-0")
        os.kill(pid, signal.SIGCONT)
        async with fleet.update(2) as update:
            assert len(update.urls) == 2
        assert (len(fleet.serving_urls), fleet.restarts) == (2, 0)
        await miss(fleet, 3, "engine-0")
        await miss(fleet, 4, "engine-0")
        assert engines.pids("engine-0") == [pid], "strikes count anew after an update that reached it"


async def test_an_engine_that_hangs_between_updates_is_left_behind(engines: Engines, monkeypatch) -> None:
    monkeypatch.setattr("miles_core.app.fleet_pulse.PULSE_SECONDS", 0.01)
    fleet = engines.fleet(["", ""], patience=0.1)
    async with fleet.running():
        await fleet.open(engines.router)
        url = fleet.named_urls["engine-0"]
        engines.stop("engine-0")
        await until(lambda: "drop engine-0" in engines.router.events)
        assert fleet.behind == (url,)
        assert engines.lost == [(url, f"engine {url} gives no answer")]
        assert fleet.serves


async def test_a_silence_shorter_than_the_patience_changes_nothing(engines: Engines, monkeypatch) -> None:
    monkeypatch.setattr("miles_core.app.fleet_pulse.PULSE_SECONDS", 0.01)
    asked: list[bool] = []

    async def answer(url: str) -> bool:
        asked.append(len(asked) % 3 == 0)
        return asked[-1]

    monkeypatch.setattr(engines.inspector, "answers", answer)
    fleet = engines.fleet(patience=5.0)
    async with fleet.running():
        await fleet.open(engines.router)
        await until(lambda: len(asked) > 20)
        assert engines.router.events == ["add engine-0"]


async def test_the_run_goes_on_with_the_others_when_one_cannot_be_started_again(engines: Engines, caplog) -> None:
    fleet = engines.fleet(["", ""], max_restarts=0)
    async with fleet.running():
        await fleet.open(engines.router)
        engines.kill("engine-0")
        await until(lambda: "others go on" in caplog.text)
        assert list(fleet.serving_urls) == ["engine-1"]
        assert not fleet.starting
        engines.kill("engine-1")
        with pytest.raises(EngineError, match="the engine-1 process died \\(signal SIGKILL\\)"), anyio.fail_after(60):
            await fleet.watch()


async def test_an_update_that_reaches_nobody_is_committed_and_the_engine_brought_up_later(engines: Engines) -> None:
    fleet, publisher = engines.fleet(), Publisher(unreachable)
    updates = updates_of(fleet, publisher, engines)
    async with fleet.running():
        await fleet.open(engines.router)
        assert (await updates.publish(1)).manifest.version == 1
        assert (fleet.version, fleet.serves) == (1, False)
        async with updates.kept_up(1):
            with anyio.fail_after(60):
                await fleet.available()
        assert publisher.calls == [(1, fleet.urls), (1, fleet.urls)]


async def test_the_only_engine_may_be_killed_while_it_catches_up(engines: Engines) -> None:
    def die(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
        engines.kill("engine-0")
        return unreachable(urls)

    fleet, publisher = engines.fleet(foreign=True), Publisher(die)
    updates = updates_of(fleet, publisher, engines)
    async with fleet.running():
        await fleet.open(engines.router)
        async with updates.kept_up(0):
            with anyio.fail_after(60):
                await fleet.available()
        assert (fleet.restarts, len(publisher.calls)) == (1, 2)


async def test_an_update_that_fails_with_the_death_of_an_engine_begins_again_with_the_others(
    engines: Engines, caplog
) -> None:
    def die(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
        engines.kill("engine-0")
        raise WeightSyncError("trainer: staging bucket 3 failed: the peer hung up")

    fleet, publisher = engines.fleet(["", ""]), Publisher(die)
    updates = updates_of(fleet, publisher, engines)
    async with fleet.running():
        await fleet.open(engines.router)
        both, survivor = fleet.urls, fleet.named_urls["engine-1"]
        with anyio.fail_after(60):
            await updates.publish(1)
        assert publisher.calls[0] == (1, both)
        assert survivor in publisher.calls[1][1]
        assert survivor in engines.router.urls
    assert "begins again" in caplog.text


async def test_an_update_that_all_refuse_ends_the_run_unless_another_one_is_being_started(engines: Engines) -> None:
    fleet = engines.fleet(["", "(folder / 'slow').exists() and wait_for('go')"])
    publisher = Publisher(refused, refused)
    updates = updates_of(fleet, publisher, engines)
    async with fleet.running():
        await fleet.open(engines.router)
        (engines.folder / "slow").touch()
        engines.kill("engine-1")
        await until(lambda: fleet.starting)
        assert (await updates.publish(1)).lost.keys() == {fleet.named_urls["engine-0"]}
        assert not fleet.serves
        (engines.folder / "go").touch()
        await until(lambda: not fleet.starting)
        with pytest.raises(NoEngineError, match="the flush was refused"):
            await updates.publish(2)


async def test_a_trainer_that_fails_while_engines_are_well_ends_the_run(engines: Engines) -> None:
    def fail(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
        raise WeightSyncError("trainer: staging bucket 3 failed: shared memory is full")

    fleet = engines.fleet(["", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(WeightSyncError, match="shared memory is full"):
            await updates_of(fleet, Publisher(fail), engines).publish(1)
        assert fleet.version == 0


async def test_an_engine_that_fails_again_and_again_rests_while_a_new_one_is_updated_at_once(
    engines: Engines, monkeypatch
) -> None:
    monkeypatch.setattr("miles_core.app.updates.RETRY_SECONDS", 600.0)
    fleet = engines.fleet(["", "", ""])
    stuck: list[str] = []

    def lose_the_stuck(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
        return unreachable(tuple(url for url in urls if url in stuck))

    publisher = Publisher(*[lose_the_stuck] * 5)
    updates = updates_of(fleet, publisher, engines)
    async with fleet.running():
        await fleet.open(engines.router)
        stuck.append(fleet.named_urls["engine-0"])
        await updates.publish(1)
        async with updates.kept_up(1):
            await until(lambda: len(publisher.calls) == 2)
            engines.kill("engine-1")
            await until(lambda: len(publisher.calls) == 3)
        async with updates.kept_up(1):
            await anyio.wait_all_tasks_blocked()
        assert [urls for _, urls in publisher.calls[1:]] == [(stuck[0],), (fleet.named_urls["engine-1"],)]


async def test_a_catch_up_that_lasts_too_long_is_given_up_when_the_trainer_is_needed(engines: Engines) -> None:
    begun, given_up = anyio.Event(), anyio.Event()

    class Slow(Publisher):
        async def publish(self, version, engines=None) -> PublishResult:
            if version == 0:
                begun.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    given_up.set()
            return await super().publish(version, engines)

    fleet = engines.fleet(foreign=True)
    updates = updates_of(fleet, Slow(), engines, patience=0.05)
    async with fleet.running():
        await fleet.open(engines.router)
        with anyio.fail_after(30):
            async with updates.kept_up(0):
                await begun.wait()
        assert given_up.is_set()
        await updates.publish(1)
        assert engines.router.urls == list(fleet.urls)


async def test_an_engine_that_refuses_at_the_start_of_a_run_ends_it(engines: Engines) -> None:
    def refuse_one(urls: tuple[str, ...]) -> dict[str, WeightSyncError]:
        return {urls[0]: RefusedError("its vocabulary is another one")}

    fleet = engines.fleet(["", ""], version=3)
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(RefusedError, match="its vocabulary"):
            await updates_of(fleet, Publisher(refuse_one), engines).catch_up(3)


async def test_an_engine_that_is_ended_is_gone_when_the_call_returns(engines: Engines) -> None:
    fleet = engines.fleet(["", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        pid, url = engines.stop("engine-0"), fleet.named_urls["engine-0"]
        lost: dict[str, MilesError] = {url: EngineError("release of memory failed")}
        async with fleet.no_starts():
            with anyio.fail_after(30), single_error():
                await fleet.leave_behind(lost, end=True)
            assert not psutil.pid_exists(pid)
            assert len(engines.pids("engine-0")) == 1
        await until(lambda: len(fleet.serving_urls) == 2)
