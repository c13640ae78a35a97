"""Requests that die with an engine are generated again; other errors stay errors."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest

from miles_core.app.fleet_client import FleetClient
from miles_core.errors import EngineError, EngineRequestError
from miles_core.types import FinishReason, GenerateRequest, Generation, SamplingParams

from .engine_processes import Engines

pytestmark = pytest.mark.anyio
REQUEST = GenerateRequest((1, 2), SamplingParams(), "r")
GENERATION = Generation(np.zeros(1, np.int32), np.zeros(1, np.float32), FinishReason("length"))


@pytest.fixture
def engines(tmp_path: Path, monkeypatch) -> Engines:
    monkeypatch.setattr("miles_core.app.fleet_servers.BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr("miles_core.app.outages.PROBE_SECONDS", 0.01)
    return Engines(tmp_path)


class Scripted:
    """A client whose calls do one thing after the other."""

    def __init__(self, *acts, shown: int = 0) -> None:
        self.acts = list(acts)
        self.rids: list[str] = []
        self.shown = shown

    async def generate(self, request: GenerateRequest, *, on_tokens=None) -> Generation:
        await anyio.lowlevel.checkpoint()
        self.rids.append(request.rid)
        act = self.acts.pop(0)
        for token in range(self.shown):
            on_tokens([token])
        if callable(act):
            act()
            raise EngineError("connection reset")
        if isinstance(act, Exception):
            raise act
        return act


async def test_what_died_with_the_only_engine_is_generated_when_it_is_back(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        client = FleetClient(Scripted(lambda: engines.kill("engine-0"), GENERATION), fleet)
        with anyio.fail_after(60):
            assert await client.generate(REQUEST) is GENERATION
        assert len(engines.pids("engine-0")) == 2


@pytest.mark.parametrize("error", [EngineError("the reply is malformed"), EngineRequestError("too long")])
async def test_an_error_of_a_living_engine_is_raised_at_once(engines: Engines, error: EngineError) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        with pytest.raises(type(error), match=error.message), anyio.fail_after(10):
            await FleetClient(Scripted(error), fleet).generate(REQUEST)


async def test_what_met_an_engine_that_was_silent_for_a_moment_is_tried_again(engines: Engines, monkeypatch) -> None:
    answers, asked = iter([False, False, True]), []

    async def answer(url: str) -> bool:
        asked.append(url)
        return next(answers)

    monkeypatch.setattr(engines.inspector, "answers", answer)
    fleet = engines.fleet()
    async with fleet.running(), anyio.create_task_group() as tasks:
        await fleet.open(engines.router)
        for _ in range(20):
            client = FleetClient(Scripted(EngineError("connection refused"), GENERATION), fleet)
            tasks.start_soon(client.generate, REQUEST)
    assert len(asked) == 3, "one request asked for all"


async def test_calls_wait_while_no_engine_serves(engines: Engines) -> None:
    fleet = engines.fleet(foreign=True)
    async with fleet.running():
        await fleet.open(engines.router)
        with anyio.move_on_after(0.05) as scope:
            await FleetClient(Scripted(), fleet).generate(REQUEST)
        assert scope.cancelled_caught


async def test_a_stream_that_died_before_its_first_token_is_repeated_under_another_rid(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        scripted = Scripted(lambda: engines.kill("engine-0"), GENERATION)
        got: list[int] = []
        with anyio.fail_after(60):
            assert await FleetClient(scripted, fleet).generate(REQUEST, on_tokens=got.extend) is GENERATION
    first, second = scripted.rids
    assert first == "r"
    assert not second.startswith(first), "SGLang aborts every rid that begins with the given one"


async def test_a_stream_that_died_after_its_first_token_is_not_repeated(engines: Engines) -> None:
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        scripted = Scripted(lambda: engines.kill("engine-0"), GENERATION, shown=2)
        got: list[int] = []
        with pytest.raises(EngineError, match="connection reset"), anyio.fail_after(60):
            await FleetClient(scripted, fleet).generate(REQUEST, on_tokens=got.extend)
    assert got == [0, 1]
    assert scripted.rids == ["r"]
