"""Memory that engines lend to the trainer: one that does not give it back, or take it again, costs no run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import anyio
import psutil
import pytest

from miles_core.app.colocation import Colocated
from miles_core.app.fleet import Fleet
from miles_core.errors import EngineError

from .engine_processes import Engines

pytestmark = pytest.mark.anyio

# An engine that answers over HTTP what the file answers-<name> says by path: a list of statuses, 0 for never, the last
# one for ever; it notes the calls in calls-<name>. In its later lives it says yes to all.
SERVE = """
import http.server, json
from threading import Thread
answers, lives = folder / f"answers-{name}", len(list(folder.glob(f"{name}.*")))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        with (folder / f"calls-{name}").open("a") as calls:
            print(self.path, file=calls)
        said = json.loads(answers.read_text()) if answers.exists() and lives == 1 else {}
        statuses = said.get(self.path, [200])
        if len(statuses) > 1:
            said[self.path] = statuses[1:]
            answers.write_text(json.dumps(said))
        if not statuses[0]:
            time.sleep(600)
        self.send_response(statuses[0])
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
Thread(target=server.serve_forever, daemon=True).start()
report({"url": f"http://127.0.0.1:{server.server_port}"})
time.sleep(600)
"""


class Colocation:
    """A fleet of such engines, and the placement that moves their memory."""

    def __init__(self, engines: Engines, fleet: Fleet, http: aiohttp.ClientSession) -> None:
        self.engines = engines
        self.fleet = fleet
        self.http = http

    def placement(self, *, timeout: float = 30.0, patience: float = 0.3) -> Colocated:
        return Colocated(self.fleet, self.http, timeout=timeout, patience=patience)

    def answer(self, name: str, **statuses: list[int]) -> None:
        said = {f"/{path}": values for path, values in statuses.items()}
        (self.engines.folder / f"answers-{name}").write_text(json.dumps(said))

    def calls(self, name: str) -> list[str]:
        file = self.engines.folder / f"calls-{name}"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
async def colocation(tmp_path: Path, monkeypatch) -> AsyncIterator[Callable[[int], Colocation]]:
    monkeypatch.setattr("miles_core.app.fleet_servers.BACK_OFF_SECONDS", 0.01)
    engines = Engines(tmp_path)

    async def answers(_: str) -> bool:
        return True

    engines.inspector.answers = answers
    async with aiohttp.ClientSession() as http:

        def make(count: int) -> Colocation:
            return Colocation(engines, engines.fleet(["\n    ".join(SERVE.splitlines())] * count), http)

        yield make


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


async def test_memory_is_drained_and_released_before_the_step_and_resumed_after_it(colocation) -> None:
    both = colocation(2)
    async with both.fleet.running():
        await both.fleet.open(both.engines.router)
        async with both.placement().training():
            for name in ("engine-0", "engine-1"):
                assert both.calls(name) == ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
        assert both.calls("engine-0")[-1] == "/resume_memory_occupation"
        assert len(both.fleet.serving_urls) == 2


async def test_a_drain_is_asked_for_until_nothing_runs(colocation) -> None:
    one = colocation(1)
    one.answer("engine-0", flush_cache=[400, 400, 400, 200])
    async with one.fleet.running():
        await one.fleet.open(one.engines.router)
        async with one.placement().training():
            assert one.calls("engine-0").count("/flush_cache") == 4
        assert one.fleet.restarts == 0


@pytest.mark.parametrize(
    "statuses",
    [{"pause_generation": [0]}, {"flush_cache": [0]}, {"release_memory_occupation": [500]}],
    ids=["hangs at the pause", "hangs at the drain", "refuses the release"],
)
async def test_an_engine_that_keeps_its_memory_is_killed_before_the_step_and_started_after_it(
    colocation, statuses
) -> None:
    both = colocation(2)
    both.answer("engine-0", **statuses)
    async with both.fleet.running():
        await both.fleet.open(both.engines.router)
        (pid,) = both.engines.pids("engine-0")
        async with both.placement().training():
            assert not psutil.pid_exists(pid)
            assert both.engines.pids("engine-0") == [pid], "no other one takes memory now"
            assert list(both.fleet.serving_urls) == ["engine-1"]
        await until(lambda: len(both.fleet.urls) == 2)
        async with both.fleet.update(1) as update:
            assert len(update.urls) == 2
        assert len(both.fleet.serving_urls) == 2


async def test_an_engine_that_does_not_take_its_memory_again_is_left_behind(colocation) -> None:
    both = colocation(2)
    both.answer("engine-0", resume_memory_occupation=[500])
    async with both.fleet.running():
        await both.fleet.open(both.engines.router)
        async with both.placement().training():
            pass
        assert list(both.fleet.serving_urls) == ["engine-1"]
        assert both.fleet.behind == (both.fleet.named_urls["engine-0"],)
        assert both.engines.router.urls == [both.fleet.named_urls["engine-1"]]


async def test_an_engine_that_dies_in_the_step_is_not_resumed_and_comes_back(colocation) -> None:
    both = colocation(2)
    async with both.fleet.running():
        await both.fleet.open(both.engines.router)
        async with both.placement().training():
            both.engines.kill("engine-0")
            await until(lambda: both.fleet.restarts == 1)
        assert both.calls("engine-1")[-1] == "/resume_memory_occupation"
        await until(lambda: len(both.fleet.urls) == 2)


async def test_the_step_goes_on_without_any_engine_where_the_only_one_dies_at_the_release(colocation) -> None:
    one = colocation(1)
    one.answer("engine-0", release_memory_occupation=[0])
    stepped: list[int] = []
    async with one.fleet.running(), anyio.create_task_group() as tasks:
        await one.fleet.open(one.engines.router)

        async def step() -> None:
            async with one.placement().training():
                stepped.append(len(one.fleet.urls))

        tasks.start_soon(step)
        await until(lambda: "/release_memory_occupation" in one.calls("engine-0"))
        one.engines.kill("engine-0")
        await until(lambda: stepped == [0])
        await until(lambda: len(one.fleet.urls) == 1)


async def test_a_refusal_by_all_engines_that_are_well_ends_the_run(colocation) -> None:
    both = colocation(2)
    both.answer("engine-0", release_memory_occupation=[400])
    both.answer("engine-1", release_memory_occupation=[400])
    async with both.fleet.running():
        await both.fleet.open(both.engines.router)
        with pytest.raises(EngineError, match="release of memory was refused with status 400"):
            async with both.placement().training():
                pytest.fail("the trainer must not take memory that engines hold")
