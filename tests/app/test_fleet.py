"""The engines of a run: they start together, are watched, come back, and serve only the committed version."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from miles_core.app.fleet import Fleet, Server
from miles_core.errors import EngineError, RouterError, WeightSyncError

from .engine_processes import Engines, Router

pytestmark = pytest.mark.anyio


@pytest.fixture
def engines(tmp_path: Path, monkeypatch) -> Engines:
    monkeypatch.setattr("miles_core.app.fleet_servers.BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr("miles_core.app.outages.PROBE_SECONDS", 0.01)
    return Engines(tmp_path)


async def until(condition) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


async def test_engines_start_at_once_and_end_with_the_block(engines: Engines) -> None:
    meet = "(folder / f'{name}-is-here').touch(); wait_for('engine-0-is-here'); wait_for('engine-1-is-here')"
    fleet = engines.fleet([meet, meet])
    async with fleet.running():
        await fleet.open(engines.router)
        assert sorted(engines.router.urls) == sorted(fleet.urls)
        assert list(fleet.named_urls) == ["engine-0", "engine-1"]
        assert fleet.behind == ()
    assert engines.alive() == []


async def test_a_person_sees_what_each_engine_is_at(engines: Engines) -> None:
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if "engine-0 loading weights" in text and "engine-1 ready" in text:
            (engines.folder / "go").touch()

    fleet = engines.fleet(["report_progress('loading weights'); wait_for('go')", ""])
    async with fleet.running():
        await fleet.open(engines.router, show)
    assert shown[0].startswith("starting engines: engine-0 starting, 0 s; engine-1 starting, 0 s")
    assert any("engine-0 loading weights, " in text and text.endswith("engine-1 ready") for text in shown)


async def test_a_start_that_fails_shows_its_log_and_ends_the_others(engines: Engines) -> None:
    fleet = engines.fleet(["wait_for('never')", "print('no such device', flush=True); sys.exit(3)"])
    with pytest.raises(EngineError, match=r"the engine-1 process died \(exit code 3\)(.|\n)*no such device"):
        async with fleet.running():
            await fleet.open(engines.router)
    assert engines.alive() == []
    assert len(engines.pids("engine-1")) == 1, "what fails at its first start is not tried again"


async def test_an_engine_that_the_run_cannot_use_is_refused_at_the_start(engines: Engines) -> None:
    engines.inspector.refused = "another model"
    fleet = engines.fleet()
    with pytest.raises(EngineError, match="another model"):
        async with fleet.running():
            await fleet.open(engines.router)
    assert engines.router.events == []


async def test_an_engine_that_dies_is_taken_out_and_started_again(engines: Engines, caplog) -> None:
    fleet = engines.fleet(["", ""])
    with caplog.at_level(logging.WARNING, "miles"):
        async with fleet.running():
            await fleet.open(engines.router)
            first = fleet.named_urls["engine-0"]
            engines.kill("engine-0")
            await until(lambda: engines.router.events[2:] == ["remove engine-0", "add engine-0"])
            assert first not in fleet.urls
            assert len(engines.router.urls) == 2
            assert (fleet.outages.deaths, fleet.restarts) == (1, 1)
    assert engines.lost == [(first, "the engine-0 process died (signal SIGKILL)")]
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "died" in text]) == 1
    assert said[0].startswith("engine-0 is started again (1 of 2): the engine-0 process died (signal SIGKILL)")
    assert said[-1] == "engine-0 serves again"
    assert not [text for text in said if "generation waits" in text], "the other one still serves"
    assert engines.alive() == []


async def test_an_engine_that_comes_back_gets_requests_only_with_the_committed_weights(
    engines: Engines, caplog
) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        async with fleet.update(3) as update:
            assert update.urls == fleet.urls
        assert fleet.version == 3
        engines.kill("engine-0")
        with anyio.fail_after(60):
            while not fleet.behind:
                await fleet.changed()
        assert engines.router.urls == []
        assert "generation waits" in caplog.text
        async with fleet.update(3, everyone=False) as update:
            assert update.urls == fleet.behind == fleet.urls
            assert engines.router.urls == []
        assert engines.router.urls == list(fleet.urls)
        assert fleet.behind == ()
        with anyio.fail_after(5):
            await fleet.available()


async def test_an_engine_that_comes_up_during_an_update_missed_it(engines: Engines) -> None:
    fleet = engines.fleet(["", ""])
    async with fleet.running():
        await fleet.open(engines.router)
        async with fleet.update(1) as update:
            assert len(update.urls) == 2
            engines.kill("engine-0")
            await until(lambda: len(engines.pids("engine-0")) == 2)
            assert list(fleet.named_urls) == ["engine-1"]
        with anyio.fail_after(60):
            while not fleet.behind:
                await fleet.changed()
        assert fleet.behind == (fleet.named_urls["engine-0"],)
        assert engines.router.urls == [fleet.named_urls["engine-1"]]


@pytest.mark.parametrize(("foreign", "version"), [(True, 0), (False, 7)])
async def test_engines_of_other_weights_wait_for_an_update_from_the_start_on(
    engines: Engines, foreign, version
) -> None:
    fleet = engines.fleet(foreign=foreign, version=version)
    async with fleet.running():
        await fleet.open(engines.router)
        assert fleet.behind == fleet.urls != ()
        async with fleet.update(version, everyone=False):
            pass
        assert engines.router.urls == list(fleet.urls)


@pytest.mark.parametrize("max_restarts", [0, 1])
async def test_the_death_after_the_last_restart_is_raised(engines: Engines, max_restarts: int) -> None:
    fleet = engines.fleet(max_restarts=max_restarts)
    async with fleet.running():
        await fleet.open(engines.router)
        for life in range(max_restarts + 1):
            with anyio.fail_after(60):
                await fleet.available()
            engines.kill("engine-0")
            await until(lambda life=life: fleet.outages.deaths == life + 1)
        with pytest.raises(EngineError, match="the engine-0 process died \\(signal SIGKILL\\)"), anyio.fail_after(60):
            await fleet.watch()
        assert len(engines.pids("engine-0")) == max_restarts + 1


async def test_restarts_that_fail_count_as_well(engines: Engines) -> None:
    fleet = engines.fleet(["(folder / 'full').exists() and sys.exit('disk full')"])
    async with fleet.running():
        await fleet.open(engines.router)
        (engines.folder / "full").touch()
        engines.kill("engine-0")
        with pytest.raises(EngineError, match="disk full"), anyio.fail_after(60):
            await fleet.watch()
        assert len(engines.pids("engine-0")) == 3


async def test_an_hour_of_serving_makes_up_for_the_restarts_before_it(engines: Engines, monkeypatch) -> None:
    monkeypatch.setattr("miles_core.app.fleet.FORGIVEN_AFTER_SECONDS", 0.0)
    fleet = engines.fleet(max_restarts=1)
    async with fleet.running():
        await fleet.open(engines.router)
        for life in range(3):
            engines.kill("engine-0")
            await until(lambda life=life: engines.router.events.count("add engine-0") == life + 2)
        assert fleet.restarts == 3


@pytest.mark.parametrize(("tries", "seconds"), [(1, 1.0), (3, 4.0), (7, 60.0), (5000, 60.0)])
def test_the_pause_before_a_restart_doubles_up_to_a_minute(tries: int, seconds: float) -> None:
    assert Server("engine-0", lambda _: None, tries=tries).back_off == seconds


class FullRouter(Router):
    """Takes one engine, once."""

    async def add(self, url: str) -> None:
        if self.events:
            raise RouterError("the router refused")
        await super().add(url)


async def test_a_router_that_fails_is_not_taken_for_the_death_of_an_engine(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(FullRouter())
        engines.kill("engine-0")
        with pytest.raises(RouterError, match="the router refused"), anyio.fail_after(60):
            await fleet.watch()
        assert fleet.restarts == 1, "the one after the kill"
        assert fleet.urls == ()


async def failing_update(fleet: Fleet, act, reason: str) -> None:
    async with fleet.update(1):
        act()
        raise WeightSyncError(reason)


async def test_a_failed_update_names_the_engine_that_died_in_it(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(EngineError, match="engine-0 process died(.|\n)*then: receive of bucket 2 failed"):
            await failing_update(fleet, lambda: engines.kill("engine-0"), "receive of bucket 2 failed")


async def test_a_failed_update_with_all_engines_well_stays_what_it_is(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(WeightSyncError, match="a checksum differs"):
            await failing_update(fleet, lambda: None, "a checksum differs")
        assert fleet.version == 0


async def test_no_engine_starts_while_the_trainer_has_the_memory(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        async with fleet.no_starts():
            engines.kill("engine-0")
            await until(lambda: fleet.restarts == 1)
            await anyio.wait_all_tasks_blocked()
            assert len(engines.pids("engine-0")) == 1
        await until(lambda: len(fleet.urls) == 1)


async def test_an_engine_that_was_being_started_runs_when_no_start_is_left(engines: Engines) -> None:
    fleet = engines.fleet(["(folder / 'slow').exists() and wait_for('go')"])
    seen: list[tuple[str, ...]] = []

    async def use_the_memory() -> None:
        async with fleet.no_starts():
            seen.append(fleet.urls)

    async with fleet.running(), anyio.create_task_group() as tasks:
        await fleet.open(engines.router)
        (engines.folder / "slow").touch()
        engines.kill("engine-0")
        await until(lambda: len(engines.pids("engine-0")) == 2)
        tasks.start_soon(use_the_memory)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        (engines.folder / "go").touch()
        await until(lambda: seen)
        assert seen == [fleet.urls] != [()]
