"""The fixtures of the pytest plugin, used as an author uses them."""
# ruff: noqa: F811 - a test takes a fixture by the name that it is imported by

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import numpy as np
import pytest

from miles_core.errors import EngineError, PluginError, PluginNotFound
from miles_core.testing import ScriptedReply, make_plugin
from miles_core.testing.plugin import (  # noqa: F401 - fixtures
    hub,
    install_plugin,
    memory_transport,
    plugin_context,
    scripted_engine,
    token_session,
    toy_bridge,
)
from miles_core.testing.session import make_session
from miles_core.types import Message, RoutingSpec, SamplingParams, Status

if TYPE_CHECKING:
    from miles_core.session.session import TokenSession
    from miles_core.testing import ScriptedEngine, Site

pytestmark = pytest.mark.anyio
SOURCE = '''
def short(trajectory):
    """Scores short answers."""
    return float(len(trajectory.response) < 3)
'''
QUESTION = (Message("user", "2 + 3?"),)
SAMPLING = SamplingParams(max_new_tokens=40)


def test_the_plugin_imports_nothing_but_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import miles_core.testing.plugin\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'transformers', 'aiohttp', 'anyio'} & (set(sys.modules) - before)\n"
        "print(sorted(heavy), len(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, count = done.stdout.rsplit(" ", 1)
    assert names == "[]"
    assert int(count) < 10


def test_an_installed_plugin_is_found_and_made(install_plugin: Site, request: pytest.FixtureRequest) -> None:
    install_plugin("acme-kit", source=SOURCE, reward_models={"short": "acme_kit:short"})
    found = request.getfixturevalue("hub")
    assert found.resolve("reward_models", "acme-kit/short").version == "1.0"
    assert make_plugin("reward_models", "short", hub=found).scope == "sample"


def test_what_was_installed_is_gone_with_its_test() -> None:
    with pytest.raises(PluginNotFound):
        make_plugin("reward_models", "short")
    assert "acme_kit" not in sys.modules


def test_a_required_version_is_written_into_the_metadata(install_plugin: Site) -> None:
    info = install_plugin("acme", version="2.0", requires=["miles-hub<0.1"], filters={"f": "acme:f"})
    assert "Requires-Dist: miles-hub<0.1\n" in (info / "METADATA").read_text()


def test_the_context_has_run_folder_and_tokenizer(plugin_context) -> None:
    assert plugin_context.run_dir.is_dir()
    assert plugin_context.tokenizer.decode(plugin_context.tokenizer.encode("so?")) == "so?"
    with pytest.raises(PluginError, match="offers no 'judge' here"):
        plugin_context.service("judge")


async def test_a_session_records_what_the_engine_said(
    token_session: TokenSession,
    scripted_engine: ScriptedEngine,
) -> None:
    scripted_engine.add("let me see", "5")
    first = await token_session.generate(token_session.prepare(QUESTION), SAMPLING)
    asked = (*QUESTION, first.message, Message("user", "so?"))
    second = await token_session.generate(token_session.prepare(asked), SAMPLING)
    assert [turn.message.text for turn in (first, second)] == ["let me see", "5"]
    sample = token_session.samples(status=Status.COMPLETED)[0]
    assert sample.trained_tokens == len("let me see") + len("5") + 2  # two stop tokens
    assert sample.logprobs[sample.loss_mask == 1][:2].tolist() == pytest.approx([-1.0, -1.001])
    assert (
        scripted_engine.requests[1]["input_ids"][: len(scripted_engine.requests[0]["input_ids"])]
        == (scripted_engine.requests[0]["input_ids"])
    )


async def test_an_engine_without_script_left_says_so(token_session: TokenSession) -> None:
    with pytest.raises(EngineError, match="request 1 came, but the script has no reply left"):
        await token_session.generate(token_session.prepare(QUESTION), SAMPLING)


async def test_a_held_reply_is_aborted_in_the_middle_and_resumed(
    token_session: TokenSession,
    scripted_engine: ScriptedEngine,
) -> None:
    scripted_engine.add(ScriptedReply((20, 21, 22, 23, 2), hold=True), ScriptedReply((30, 2)))
    turns = []

    async def generate() -> None:
        turns.append(await token_session.generate(token_session.prepare(QUESTION), SAMPLING))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        await anyio.to_thread.run_sync(scripted_engine.wait_for_requests, 1)
        scripted_engine.abort()
    assert turns[0].generation.finish_reason.type == "abort"
    assert turns[0].generation.output_ids.tolist() == [20, 21]
    whole = await token_session.resume(turns[0])
    assert whole.generation.output_ids.tolist() == [20, 21, 30, 2]


async def test_routes_are_made_up_or_scripted(scripted_engine: ScriptedEngine) -> None:
    scripted_engine.routing = RoutingSpec(num_layers=2, layer_ids=(1,), num_experts=6, top_k=2)
    scripted_engine.add(ScriptedReply((20, 2)))
    session = make_session(scripted_engine)
    turn = await session.generate(session.prepare(QUESTION), SAMPLING)
    rows = len(scripted_engine.requests[0]["input_ids"]) + 2 - 1
    assert turn.generation.routed_experts is not None
    assert turn.generation.routed_experts.tolist() == [[[(t + 1) % 6, (t + 2) % 6]] for t in range(rows)]


async def test_failures_are_scripted_by_status(token_session: TokenSession, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.add(ScriptedReply(status=503, message="no weights"), lambda body: ScriptedReply((7, 2)))
    with pytest.raises(EngineError, match="503: no weights"):
        await token_session.generate(token_session.prepare(QUESTION), SAMPLING)
    turn = await token_session.generate(token_session.prepare(QUESTION), SAMPLING)
    assert turn.generation.output_ids.tolist() == [7, 2]


async def test_an_engine_stops_at_the_limit(token_session: TokenSession, scripted_engine: ScriptedEngine) -> None:
    scripted_engine.add("a long story")
    turn = await token_session.generate(token_session.prepare(QUESTION), SamplingParams(max_new_tokens=4))
    assert (turn.message.text, turn.generation.finish_reason.type) == ("a lo", "length")


def test_both_toy_models_build_and_say_something(toy_bridge) -> None:
    import torch

    assert toy_bridge.dense.routing is None
    assert toy_bridge.moe.routing == RoutingSpec(3, (0, 1, 2), 6, 2)
    for toy in (toy_bridge.dense, toy_bridge.moe):
        model = toy.build()
        with torch.no_grad():
            assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 104)
    assert len(toy_bridge.moe.bridge.replay_points(toy_bridge.moe.build())) == 3


def test_bytes_pass_through_the_transport(memory_transport) -> None:
    payload = np.arange(1000, dtype=np.uint8).tobytes()
    assert memory_transport.carry(payload) == payload
