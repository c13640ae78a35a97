"""What an engine lacks, or does not say, is a difference or a failure: never equality."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.app.verify import verify_run
from miles_core.app.weights_record import EngineRecord

from .conftest import VERSION, Engine, LiveRun, PlainSglang

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miles_core.app.verify.run.RETRY_SECONDS", 0.0)


class Answers:
    """SGLang without our receiver, one of whose checksums is something else."""

    def __init__(self, checksums: object) -> None:
        self._checksums = checksums

    @property
    def app(self):
        def say(content):
            async def answer(request):
                return JSONResponse(content)

            return answer

        return Starlette(
            routes=[
                Route("/model_info", say({"weight_version": str(VERSION)})),
                Route("/server_info", say({"dtype": "auto", "tp_size": 1})),
                Route("/weights_checker", say(self._checksums), methods=["POST"]),
            ]
        )


async def test_a_tensor_that_an_engine_has_not_at_all_differs(live: LiveRun, serve) -> None:
    tensors = live.tensors()
    name = sorted(tensors)[-1]
    del tensors[name]
    async with serve(Engine(tensors)) as (url,):
        live.write(EngineRecord("engine-0", url, holds=True))
        report = await verify_run(live.folder)
    (engine,) = report.engines
    assert not report.ok
    assert engine.state == "differs"
    assert [(one.tensor, one.where, one.found) for one in engine.differences] == [(name, "no rank has it", "")]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"ranks": []}, "differs"),
        ({"ranks": [{"checksums": {"w": "1"}}, {"checksums": {"w": "2"}}]}, "differs"),
        ([{"checksums": {"w": "1"}}], "failed"),
        ({"ranks": [{"checksums": {"w": "1"}}]}, "replica"),
    ],
)
async def test_a_replica_with_other_ranks_is_not_the_same(live: LiveRun, serve, answer, state) -> None:
    async with serve(PlainSglang({"w": "1"}), Answers(answer)) as urls:
        live.write(*(EngineRecord(f"engine-{number}", url, holds=True) for number, url in enumerate(urls)))
        report = await verify_run(live.folder)
    first = "failed" if state == "failed" else "replica"  # then no other is left to compare it with
    assert [engine.state for engine in report.engines] == [first, state]
    assert report.ok == (state == "replica")


async def test_an_only_engine_without_a_receiver_is_not_called_verified(live: LiveRun, serve) -> None:
    async with serve(PlainSglang({"w": "1"})) as urls:
        live.write(EngineRecord("engine-0", urls[0], holds=True))
        report = await verify_run(live.folder)
    assert not report.ok
    assert "no other engine of its kind" in report.engines[0].reason
