"""The true on-policy check: what tokens were sampled from against what the trainer computes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoTokenizer

from miles_core.app import on_policy
from miles_core.app.engine_load import running_requests
from miles_core.app.on_policy import CheckedEngine, check_on_policy, check_run_on_policy
from miles_core.app.on_policy_requests import LATE_TOKENS, RequestMaker
from miles_core.app.wiring import wire
from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.server import create_app
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.errors import ConfigError, EngineError, MilesError, TrainError
from miles_core.kinds.train_backends import ModelSource
from miles_core.train.objective import Objective
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_core.types import FinishReason, GenerateRequest, Generation, Sample, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from miles_core.app.wiring import Wiring
    from miles_core.config.load import LoadedConfig

pytestmark = pytest.mark.anyio


class InProcess:
    """A real trainer, called as the trainer process is."""

    def __init__(self, wiring: Wiring) -> None:
        model, config = wiring.model, wiring.config
        source = ModelSource(str(model.path), model.bridge, model.routing, init="random")
        backend = wiring.build("train_backends", config.train, model_source=source)
        estimator = wiring.build("advantage_estimators", config.advantage)
        settings = TrainerSettings(1, 1, "proximal", config.train.replay_routing, 10_000, 0)
        self._trainer = Trainer(backend, estimator, Objective([]), settings)

    async def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        return self._trainer.proximal_logprobs(samples)


@pytest.fixture
def checked(quickstart: Callable[..., LoadedConfig], serving: Any, tmp_path: Path) -> Callable[..., Any]:
    """``metrics, said = await checked(*overrides, deterministic=...)``: the quickstart's check on a served engine."""
    torch.set_num_threads(1)

    async def check(*overrides: str, deterministic: bool) -> tuple[dict[str, float], list[str]]:
        wiring = wire(quickstart("rollout.max_context_tokens=100", *overrides), tmp_path)
        facts = wiring.model
        model = facts.bridge.build(str(facts.path), dtype="float32", init="random", seed=0)
        engine = EmbeddedEngine(
            model,
            AutoTokenizer.from_pretrained(facts.path),
            EngineSettings(context_length=128, deterministic=deterministic),
            replay_points=facts.bridge.replay_points(model),
            routing=facts.routing,
        )
        said: list[str] = []
        outcome: Any = None
        async with serving(create_app(engine)) as server, aiohttp.ClientSession() as http:
            urls = {"engine-0": server.url}
            try:
                outcome = await check_run_on_policy(wiring, urls, http, InProcess(wiring), said.append)
            except MilesError as error:
                outcome = error  # raised outside the server's task group
        if isinstance(outcome, MilesError):
            raise outcome
        return outcome, said

    return check


async def test_a_deterministic_engine_and_trainer_are_bit_equal_in_each_case(checked: Any) -> None:
    metrics, said = await checked(
        "run.true_on_policy=require", "train.deterministic=true", "sampling.temperature=0.9", deterministic=True
    )
    assert metrics == {f"on_policy/engine-0/{case}_abs_diff_max": 0 for case in ("batch_1", "batch_8", "admission")}
    assert "engine-0: batch of 1 bit-equal (32 tokens); batch of 8 bit-equal (256 tokens)" in said[0]


async def test_another_engine_is_reported_by_how_much(checked: Any) -> None:
    metrics, said = await checked("run.true_on_policy=report", deterministic=False)
    assert 0 < metrics["on_policy/engine-0/batch_8_abs_diff_max"] < 1e-3
    assert "of 256 tokens differ)" in said[0]


async def test_required_equality_ends_with_the_largest_difference_and_what_to_set(checked: Any) -> None:
    with pytest.raises(
        TrainError, match=r'"require", but sampled and proximal .*on engine-0, .*tokens differ'
    ) as caught:
        await checked("run.true_on_policy=require", deterministic=False)
    assert "deterministic = true in [engine]" in str(caught.value)


def test_required_equality_needs_synchronous_rollouts(quickstart: Callable[..., LoadedConfig]) -> None:
    with pytest.raises(ConfigError, match=r"needs rollout\.max_staleness = 0"):
        quickstart("run.true_on_policy=require", "rollout.max_staleness=1")


class ScriptedEngine:
    """Answers short requests at once, and long ones when ``finish`` is set; its outputs have logprob -1."""

    def __init__(self, *, patient: bool = True) -> None:
        self.events: list[str] = []
        self.finish = anyio.Event()
        self.inside = 0
        self.patient = patient

    async def generate(self, request: GenerateRequest) -> Generation:
        tokens = request.sampling.max_new_tokens
        kind = "late" if tokens == LATE_TOKENS else "long"
        self.events.append(f"{kind} begins")
        self.inside += 1
        if self.patient and kind == "long":
            await self.finish.wait()
            for _ in range(20):  # the check takes note of the late replies before the long ones come
                await anyio.lowlevel.checkpoint()
        self.inside -= 1
        self.events.append(f"{kind} ends")
        if kind == "late" and self.events.count("late ends") == 4:
            self.finish.set()
        ids = np.zeros(tokens, np.int32)
        return Generation(ids, ids - np.float32(1), FinishReason("length"), (VersionSpan(0, 0, tokens),))

    async def running(self) -> int:
        self.events.append("asked")
        return self.inside


class Constant:
    """A trainer for which each token has the same logprob."""

    def __init__(self, value: float) -> None:
        self._value = value

    async def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        return [np.full(len(sample.tokens), self._value, np.float32) for sample in samples]


MAKER = RequestMaker(vocab_size=10, context_length=64, temperature=1.0, routing=None)


def test_no_request_id_begins_another_one_since_engines_abort_by_prefix() -> None:
    maker = RequestMaker(vocab_size=10, context_length=64, temperature=1.0, routing=None)
    rids = sorted(request.rid for request in maker.requests(12))
    assert not [rid for rid, following in itertools.pairwise(rids) if following.startswith(rid)]


async def run_scripted(engine: ScriptedEngine, trainer: Constant, mode: Any = "report") -> Any:
    return await check_on_policy(mode, {"e": CheckedEngine(engine, engine.running)}, trainer, MAKER, lambda text: None)


@pytest.fixture
def only_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one moment are left out."""

    async def nothing(*_: Any) -> list[Sample]:
        return [
            Sample("", "", "", "", *(np.zeros(1, t) for t in (np.int32, np.uint8, np.float32)), (), (), "completed")
        ]

    monkeypatch.setattr(on_policy, "_together", nothing)
    monkeypatch.setattr(on_policy, "_difference", lambda samples, proximal: on_policy.Difference(0.0, 0, 0))


@pytest.mark.usefixtures("only_admission")
async def test_late_requests_come_when_the_engine_decodes_and_end_before_the_long_ones() -> None:
    engine = ScriptedEngine()
    await run_scripted(engine, Constant(-1))
    assert engine.events.index("asked") < engine.events.index("late begins")
    assert engine.events.index("long begins") < engine.events.index("late begins")
    assert engine.events.index("long ends") > max(i for i, event in enumerate(engine.events) if event == "late ends")


@pytest.mark.usefixtures("only_admission")
async def test_where_nothing_can_be_admitted_in_the_middle_the_report_says_so_and_equality_is_not_proven() -> None:
    report = await run_scripted(ScriptedEngine(patient=False), Constant(-1))
    assert "admission in the middle not seen, it answers too fast" in report.text
    assert set(report.metrics) == {"on_policy/e/batch_1_abs_diff_max", "on_policy/e/batch_8_abs_diff_max"}
    with pytest.raises(
        EngineError, match="e answered 48 tokens before requests could be admitted beside them, in 10 tries"
    ):
        await run_scripted(ScriptedEngine(patient=False), Constant(-1), "require")


@pytest.mark.usefixtures("only_admission")
async def test_an_engine_that_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_policy, "_START_SECONDS", 0.05)
    engine = ScriptedEngine()

    async def running() -> int:
        return 0

    with pytest.raises(EngineError, match="e reports no running request"):
        await check_on_policy("report", {"e": CheckedEngine(engine, running)}, Constant(-1), MAKER, lambda text: None)


async def test_nothing_is_asked_when_the_check_is_off() -> None:
    engine = ScriptedEngine()
    assert await run_scripted(engine, Constant(-1), "off") is None
    assert engine.events == []


class TestReport:
    """What differs is counted, by engine and case."""

    @pytest.fixture
    def answering(self) -> ScriptedEngine:
        engine = ScriptedEngine()
        engine.finish.set()
        return engine

    @pytest.fixture(autouse=True)
    def _no_admission(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def nothing(name: str, engine: CheckedEngine, maker: RequestMaker) -> list[Sample]:
            return await on_policy._together(engine, maker.requests(1), None)

        monkeypatch.setattr(on_policy, "_in_the_middle", nothing)

    async def test_equal(self, answering: ScriptedEngine) -> None:
        report = await run_scripted(answering, Constant(-1), "require")
        assert str(report.differences["e"]["batch_8"]) == "bit-equal (256 tokens)"

    async def test_different(self, answering: ScriptedEngine) -> None:
        report = await run_scripted(answering, Constant(-1.5))
        assert report.metrics["on_policy/e/batch_1_abs_diff_max"] == 0.5
        assert str(report.differences["e"]["batch_1"]) == "0.5 (32 of 32 tokens differ)"

    async def test_not_a_number_is_different(self, answering: ScriptedEngine) -> None:
        with pytest.raises(TrainError, match="differ in 3 of 3 cases"):
            await run_scripted(answering, Constant(float("nan")), "require")

    async def test_an_aborted_generation_is_an_error(self, answering: ScriptedEngine) -> None:
        generate = answering.generate

        async def aborted(request: GenerateRequest) -> Generation:
            return replace(await generate(request), finish_reason=FinishReason("abort", message="Aborted"))

        answering.generate = aborted  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="was aborted"):
            await run_scripted(answering, Constant(-1))


async def test_requests_never_repeat_and_fit_the_context() -> None:
    maker = RequestMaker(vocab_size=100, context_length=24, temperature=0.7, routing=None, seed=3)
    requests = maker.requests(50, tokens=1000)
    assert (
        len({(tuple(r.input_ids), r.sampling.sampling_seed) for r in requests}) == len({r.rid for r in requests}) == 50
    )
    assert max(len(r.input_ids) + r.sampling.max_new_tokens for r in requests) <= 24
    wire_form = requests[0].sampling.to_wire()
    assert wire_form["ignore_eos"] is True
    assert wire_form["temperature"] == 0.7


@pytest.mark.parametrize("sglang", [False, True])
async def test_the_count_of_running_requests_is_the_engines_own(serving: Any, sglang: bool) -> None:
    async def server_info(request: Any) -> JSONResponse:
        return JSONResponse({} if sglang else {"num_running": 3})

    async def loads(request: Any) -> JSONResponse:
        return JSONResponse({"loads": [{"num_running_reqs": 1}, {"num_running_reqs": 2}]})

    app = Starlette(routes=[Route("/server_info", server_info), Route("/v1/loads", loads)])
    async with serving(app) as server, aiohttp.ClientSession() as http:
        assert await running_requests(server.url, http) == 3


async def test_an_engine_that_does_not_count_is_an_error(serving: Any) -> None:
    async def server_info(request: Any) -> JSONResponse:
        return JSONResponse({})

    async with (
        serving(Starlette(routes=[Route("/server_info", server_info)])) as server,
        aiohttp.ClientSession() as http,
    ):
        with pytest.raises(EngineError, match="must answer a JSON object; got status 404"):
            await running_requests(server.url, http)
