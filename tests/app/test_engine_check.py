"""Engines that a run cannot use are named before the first request, with both numbers."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from miles_core.app.engine_check import EngineCheck
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.errors import EngineError

pytestmark = pytest.mark.anyio
CONFIG = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
MODEL = CONFIG.parent / "model"
OURS = json.loads((MODEL / "config.json").read_text())
GOOD = {"context_length": 128, "model_path": str(MODEL), "enable_return_routed_experts": True}


@pytest.fixture
def check(serving, tmp_path: Path):
    """Hold an engine that reports these facts against a config."""
    wiring = wire(load_config(CONFIG), tmp_path)

    async def run(facts, *, replay: bool = True, status: int = 200, then=None):
        def info(_request):
            return JSONResponse(facts, status_code=status) if isinstance(facts, dict) else PlainTextResponse(facts)

        app = Starlette(routes=[Route(path, info) for path in ("/model_info", "/server_info")])
        refusal: EngineError | None = None
        async with serving(app) as server, aiohttp.ClientSession() as http:
            engine_check = EngineCheck(wiring.model, 96, replay, http)
            try:
                await engine_check.check(server.url)
            except EngineError as error:
                refusal = error
            result = await then(engine_check, server.url) if then is not None else None
        if refusal is not None:
            raise refusal
        return result

    return run


def served(tmp_path: Path, **changes: object) -> dict[str, object]:
    """What an engine reports that serves our model with another config.json."""
    (tmp_path / "config.json").write_text(json.dumps({**OURS, **changes}))
    return {**GOOD, "model_path": str(tmp_path)}


async def test_an_engine_of_our_model_passes(check) -> None:
    await check(GOOD)


async def test_an_engine_that_reports_next_to_nothing_passes_and_its_replies_are_checked(check) -> None:
    await check({"model_path": "/on/another/machine"})


@pytest.mark.parametrize("limits", [{"context_length": 102}, {"context_length": None, "max_req_input_len": 96}])
async def test_an_engine_with_just_the_context_that_is_needed_passes(check, limits) -> None:
    await check({**GOOD, **limits})


async def test_a_run_that_uses_the_whole_context_needs_what_sglang_gives_of_it(tmp_path: Path) -> None:
    wiring = wire(load_config(CONFIG, ["rollout.max_context_tokens=9999"]), tmp_path)
    async with aiohttp.ClientSession() as http:
        needed = EngineCheck.of_run(wiring, http).context_tokens
    assert needed == wiring.model.context_length - 6


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"vocab_size": 151936}, ["vocab_size", "151936", str(OURS["vocab_size"])]),
        ({"architectures": ["LlamaForCausalLM"]}, ["architectures", "LlamaForCausalLM", OURS["architectures"][0]]),
        ({"context_length": 101}, ["at most 95 tokens", "may have 96"]),
        ({"context_length": None, "max_req_input_len": 95}, ["at most 95 tokens", "may have 96"]),
        ({"context_length": 102, "max_req_input_len": 90}, ["at most 90 tokens", "may have 96"]),
        ({"enable_return_routed_experts": False}, ["--enable-return-routed-experts", "train.replay_routing"]),
    ],
)
async def test_what_an_engine_reports_is_held_against_ours(check, facts, told: list[str]) -> None:
    with pytest.raises(EngineError, match="http://127.0.0.1") as caught:
        await check({**GOOD, **facts})
    for text in told:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocab_size", 999), ("num_hidden_layers", 7), ("num_local_experts", 64), ("num_experts_per_tok", 1)],
)
async def test_the_config_of_the_served_directory_is_held_against_ours(check, tmp_path, name: str, value: int) -> None:
    with pytest.raises(EngineError, match=rf"serves another model.* is {value}, that of .* is {OURS[name]}"):
        await check(served(tmp_path, **{name: value}))


async def test_routed_experts_are_needed_only_for_replay(check) -> None:
    await check({**GOOD, "enable_return_routed_experts": False}, replay=False)


@pytest.mark.parametrize(("facts", "status"), [("no json", 200), ({"detail": "no such path"}, 404)])
async def test_a_server_that_is_no_engine_is_said_to_be_none(check, facts, status: int) -> None:
    with pytest.raises(EngineError, match="must answer /server_info with a JSON object"):
        await check(facts, status=status)


async def test_a_server_that_is_gone_is_named(check) -> None:
    async with aiohttp.ClientSession() as http:
        engine_check = EngineCheck(wire(load_config(CONFIG), Path()).model, 96, True, http)
        with pytest.raises(EngineError, match="engine http://127.0.0.1:9 does not answer /server_info"):
            await engine_check.check("http://127.0.0.1:9")
        assert not await engine_check.answers("http://127.0.0.1:9")


async def test_acceptance_lengths_are_asked_of_speculating_engines_only(check) -> None:
    async def length(engine_check: EngineCheck, url: str):
        assert await engine_check.answers(url), "any status is an answer"
        return await engine_check.accept_length([url, "http://elsewhere"])

    states = [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}, {}]
    speculating = {**GOOD, "speculative_algorithm": "EAGLE", "internal_states": states}
    assert await check(speculating, then=length) == 2.5
    assert await check({**GOOD, "internal_states": states}, then=length) is None
