"""The embedded engine and the torch backend on every family: what one records the other replays."""

from __future__ import annotations

from base64 import b64decode
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from miles_core.api import OptimizerSettings, PluginContext, RoutingTrace
from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.server import create_app
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.kinds.train_backends import ModelSource
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.types import Opening
from miles_core.weights.plan import Receiver, make_plan
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.source import WeightSource
from miles_plugins.transports.memory import Memory

from .conftest import VOCAB, own_routes, sample_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from miles_core.api import Sample

    from .conftest import Family

pytestmark = pytest.mark.anyio

PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15]]
SETTINGS = EngineSettings(context_length=64, max_running_requests=4)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    vocabulary = {f"w{number}": number for number in range(VOCAB)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")))


@pytest.fixture
def saved(family: Family, tmp_path: Path) -> Path:
    """A checkpoint of the family."""
    family.build(tmp_path / "saved").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def engine(family: Family, saved: Path, tokenizer: Any) -> EmbeddedEngine:
    bridge = family.make_bridge()
    model = bridge.build(str(saved), dtype="float32", init="pretrained", seed=0)
    return EmbeddedEngine(model, tokenizer, SETTINGS, replay_points=bridge.replay_points(model), routing=family.spec)


@dataclass(frozen=True)
class Reply:
    """One answer of ``/generate``: ``wire`` is ``[rows, num_layers, top_k]``, as sent."""

    tokens: np.ndarray
    prompt: int
    logprobs: list[float]
    wire: np.ndarray
    version: str

    def sample(self, family: Family) -> Sample:
        experts = self.wire[:, list(family.layer_ids)].astype(np.uint8)
        return sample_of(self.tokens, RoutingTrace(experts, family.layer_ids), prompt=self.prompt)


@pytest.fixture
def serve(serving: Callable[..., Any]) -> Callable[..., Any]:
    """``async with serve(engine) as generate``, then ``await generate()``: over loopback HTTP, as in a run."""

    @asynccontextmanager
    async def serve(engine: EmbeddedEngine) -> AsyncIterator[Callable[[], Awaitable[list[Reply]]]]:
        body = {
            "input_ids": PROMPTS,
            "sampling_params": {"max_new_tokens": 12, "ignore_eos": True},
            "return_logprob": True,
            "return_routed_experts": True,
        }
        async with serving(create_app(engine)) as server, aiohttp.ClientSession() as http:

            async def generate() -> list[Reply]:
                async with http.post(f"{server.url}/generate", json=body) as response:
                    assert response.status == 200, await response.text()
                    return list(map(read_reply, PROMPTS, await response.json()))

            yield generate

    return serve


def read_reply(prompt: list[int], reply: dict[str, Any]) -> Reply:
    meta, tokens = reply["meta_info"], [*prompt, *reply["output_ids"]]
    wire = np.frombuffer(b64decode(meta["routed_experts"]), np.int32).reshape(len(tokens) - 1, 3, 2)
    logprobs = [logprob for logprob, _, _ in meta["output_token_logprobs"]]
    return Reply(np.array(tokens, np.int32), len(prompt), logprobs, wire, meta["weight_version"])


def plain_logprobs(model: Any, reply: Reply) -> np.ndarray:
    """Of the generated tokens, by one pass of the model."""
    ids = torch.from_numpy(reply.tokens.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(input_ids=ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    return logprobs.gather(-1, ids[:, 1:, None])[0, reply.prompt - 1 :, 0].numpy()


async def test_logprobs_and_routes_are_those_of_a_plain_pass_of_the_model(
    family: Family, engine: EmbeddedEngine, serve: Any
) -> None:
    async with serve(engine) as generate:
        replies = await generate()
    model = engine._model
    for reply in replies:
        assert len(reply.logprobs) == 12
        np.testing.assert_allclose(reply.logprobs, plain_logprobs(model, reply), atol=1e-4)
        chosen = np.zeros_like(reply.wire)  # dense layers have rows of zeros
        chosen[:, list(family.layer_ids)] = own_routes(family, model, reply.tokens).experts
        np.testing.assert_array_equal(reply.wire, chosen)


async def test_the_torch_backend_trains_on_what_the_engine_recorded(
    family: Family, engine: EmbeddedEngine, saved: Path, serve: Any
) -> None:
    async with serve(engine) as generate:
        samples = [reply.sample(family) for reply in await generate()]
    source = ModelSource(str(saved), family.make_bridge(), family.spec)
    backend = TorchBackend(TorchBackendConfig(), PluginContext(services={"model_source": source}))
    backend.reset_optimizer(OptimizerSettings(1e-2))
    before = {name: tensor.detach().clone() for name, tensor in backend.parameters().items()}
    first = backend.forward(samples, replay=True).logprobs.sum()
    assert backend.replay_metrics() == {"replay/mismatch_fraction": 0.0}
    backend.forward_backward(samples, lambda outputs: -outputs.logprobs.sum(), replay=True, entropy=False)
    assert backend.optimizer_step(1e-2) > 0
    assert backend.forward(samples, replay=True).logprobs.sum() > first
    same = {name for name, tensor in backend.parameters().items() if torch.equal(tensor, before[name])}
    assert same == {name for name in before if name.endswith("e_score_correction_bias")}


@pytest.fixture
def memory() -> Iterator[Memory]:
    transport = Memory(None, PluginContext())
    yield transport
    transport.close()


async def test_a_weight_update_makes_the_engine_equal_to_the_trainer(
    family: Family, engine: EmbeddedEngine, serve: Any, memory: Memory, tmp_path: Path
) -> None:
    trained = family.build(tmp_path / "trained", seed=1)
    held, sent = engine.parameters(), trained.state_dict()
    receiver = WeightReceiver(parameter_table(held), held, lambda name: memory, engine, version=0)
    source = WeightSource(layout_of(family, sent), lambda: sent, lambda name: memory)
    assert any(not torch.equal(held[name], sent[name]) for name in sent)
    async with serve(engine) as generate:
        await generate()
        receiver.begin(1, "memory")
        source.open("memory", Opening(1))
        checksums = {}
        for bucket in make_plan(source.layout, {Receiver("engine"): layout_of(family, held)}, 4000).buckets:
            delivery, checksums[bucket.index] = source.stage(bucket)
            receiver.receive(1, bucket, delivery)
            source.release(delivery)
        receiver.verify(1, checksums)
        receiver.commit(1)
        assert all(torch.equal(held[name], sent[name]) for name in sent)
        replies = await generate()
    for reply in replies:
        assert reply.version == "1"
        np.testing.assert_allclose(reply.logprobs, plain_logprobs(trained, reply), atol=1e-4)


def layout_of(family: Family, tensors: dict[str, torch.Tensor]) -> Any:
    return build_layout(family.bridge.mapping, parameter_table(tensors), {})
