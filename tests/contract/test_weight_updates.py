"""The publisher and the disk transport against real SGLang."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio.to_thread
import pytest
import torch

from miles_core.api import PluginContext
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import WeightSyncError
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.types import GenerateRequest, SamplingParams
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.publish import Publisher
from miles_core.weights.salt import PrefixSalt
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.disk import Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from miles_core.weights.publish import PauseMode

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
BRIDGES: dict[str, Any] = {"Qwen3ForCausalLM": Qwen3, "Qwen3MoeForCausalLM": Qwen3Moe}
TOLERANCE = 0.1
"""In nats, for the median of tokens: bfloat16 can flip an expert, and then single tokens differ by more."""
PROMPT = [5, 9, 14, 7, 30, 21, 8, 11]


class Trainer:
    """A trained model in this process, in float32, whose weights are those of the checkpoint and noise."""

    def __init__(self, checkpoint: Path, transport: Disk) -> None:
        facts = json.loads((checkpoint / "config.json").read_text())
        bridge = BRIDGES[facts["architectures"][0]]
        self.build = partial(bridge(None, None).build, str(checkpoint), seed=0)
        self.vocab_size = facts["vocab_size"]
        self.model = self.build(dtype="float32", init="pretrained")
        self.perturb(1)
        tensors = self.model.state_dict(keep_vars=True)
        layout = build_layout(bridge.mapping, parameter_table(tensors), self.model.config.to_dict())
        self._source = WeightSource(layout, lambda: tensors, lambda name: transport)
        self.damage: Any = None

    def perturb(self, seed: int) -> None:
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.05)

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Log-probabilities after each of ``ids``, of a model in the engine's type."""
        served = self.build(dtype="bfloat16", init="pretrained")
        served.load_state_dict({name: tensor.bfloat16() for name, tensor in self.model.state_dict().items()})
        with torch.no_grad():
            return torch.log_softmax(served(torch.tensor([ids])).logits[0].float(), -1)

    async def layout(self) -> Any:
        return self._source.layout

    async def open_update(self, transport: str, opening: Any) -> None:
        await anyio.to_thread.run_sync(self._source.open, transport, opening)

    async def transport_path(self) -> str:
        return self._source.path()

    async def stage(self, bucket: Any) -> Any:
        delivery, checksum = await anyio.to_thread.run_sync(self._source.stage, bucket)
        if self.damage is not None:
            self.damage(bucket, delivery)
        return delivery, checksum

    async def release(self, delivery: Any) -> None:
        await anyio.to_thread.run_sync(self._source.release, delivery)


class Served:
    """One server with a trainer of its model."""

    def __init__(self, url: str, trainer: Trainer, http: aiohttp.ClientSession) -> None:
        self.url, self.trainer, self._http = url, trainer, http
        self.salt = PrefixSalt()
        self.version = 100

    async def publish(self, pause_mode: PauseMode = "in_place") -> None:
        """The trainer's weights as the next version."""
        facts = TransportFacts.of("disk", Disk)
        way = TransportWay(facts, "sglang", pause_mode, lambda table, source: source, frozenset())
        publisher = Publisher(
            SimpleNamespace(urls=(self.url,)), self.trainer, self._http, bucket_bytes=1 << 16, timeout=120.0,
            pause_mode=pause_mode, choice=NamedChoice(way), salt=self.salt,
        )  # fmt: skip
        await publisher.publish(self.version + 1)
        self.version += 1

    async def post(self, path: str, body: Any) -> Any:
        async with self._http.post(self.url + path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def generate(self, salt: str, tokens: int = 2, temperature: float = 1.0) -> Any:
        return await self.post("/generate", body_of(tokens, temperature) | {"extra_key": salt})

    async def distance(self, salt: str) -> float:
        """How far a generation's logprobs are from those of the trained weights: the median."""
        reply = await self.generate(salt, 64)
        ids = torch.tensor(reply["output_ids"])
        rows = self.trainer.logprobs(PROMPT + reply["output_ids"])[len(PROMPT) - 1 : -1]
        found = torch.tensor([row[0] for row in reply["meta_info"]["output_token_logprobs"]])
        return float((found - rows.gather(1, ids[:, None])[:, 0]).abs().median())

    async def checksums(self) -> dict[str, str]:
        """By parameter."""
        return dict((await self.post("/weights_checker", {"action": "checksum"}))["ranks"][0]["checksums"])

    @asynccontextmanager
    async def in_flight(self, salt: str) -> AsyncIterator[list[Any]]:
        """A long generation that has begun; the list holds its last chunk after the block."""
        last: list[Any] = []
        body = body_of(150) | {"extra_key": salt, "stream": True}
        async with self._http.post(f"{self.url}/generate", json=body) as reply:
            await reply.content.readline()
            yield last
            lines = [line async for line in reply.content if line.startswith(b"data: {")]
        last.append(json.loads(lines[-1].removeprefix(b"data: ")))


def body_of(tokens: int, temperature: float = 1.0) -> dict[str, Any]:
    sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}


def logprobs_of(reply: Any) -> Any:
    return reply["meta_info"]["output_token_logprobs"]


@pytest.fixture
async def served(sglang: Any) -> AsyncIterator[Served]:
    """The session's server of a model; it gets its first weights and version back."""
    transport = Disk(Disk.Config(), PluginContext())
    try:
        async with aiohttp.ClientSession() as http:
            made = Served(sglang.url, Trainer(Path(sglang.model_path), transport), http)
            yield made
            await made.post("/update_weights_from_disk", {"model_path": sglang.model_path, "weight_version": "0"})
            await made.post("/continue_generation", {})
    finally:
        transport.close()


@pytest.mark.parametrize("pause_mode", ["in_place", "retract", "abort"])
async def test_the_served_model_is_the_trained_one(served: Served, pause_mode: PauseMode) -> None:
    assert await served.distance("before") > TOLERANCE
    await served.publish(pause_mode)
    assert await served.distance(served.salt.current) < TOLERANCE
    assert (await served.generate(served.salt.current))["meta_info"]["weight_version"] == str(served.version)


async def test_every_byte_of_the_parameters_comes_from_the_update(served: Served) -> None:
    await served.publish()
    published = await served.checksums()
    await served.post("/weights_checker", {"action": "reset_tensors"})
    spoiled = await served.checksums()
    assert [name for name in published if published[name] == spoiled[name]] == []
    await served.publish()
    assert await served.checksums() == published


@pytest.mark.parametrize("pause_mode", ["in_place", "retract"])
async def test_a_request_in_flight_goes_on_under_the_new_version(served: Served, pause_mode: PauseMode) -> None:
    await served.publish()
    async with served.in_flight(served.salt.current) as last:
        await served.publish(pause_mode)
    meta = last[0]["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 150}
    versions = [span["version"] for span in meta["weight_versions"]]
    assert versions == [str(served.version - 1), str(served.version)]


async def test_a_salt_keeps_prefixes_of_old_weights_from_new_requests(served: Served) -> None:
    await served.publish()
    old = served.salt.current
    served.trainer.perturb(2)
    async with served.in_flight(old):
        await served.publish("in_place")
    salted = await served.generate(served.salt.current, temperature=0)
    unsalted = await served.generate(old, temperature=0)  # as if the salt had not changed
    fresh = await served.generate("fresh", temperature=0)
    assert logprobs_of(salted) == logprobs_of(fresh)
    assert (salted["meta_info"]["cached_tokens"], unsalted["meta_info"]["cached_tokens"]) == (0, len(PROMPT) - 1)
    assert logprobs_of(unsalted) != logprobs_of(salted)


async def test_a_batch_shares_its_salt(served: Served) -> None:
    options: Any = {"vocab_size": served.trainer.vocab_size, "context_length": 256, "routing": None}
    requests = [GenerateRequest(PROMPT, SamplingParams(max_new_tokens=2), f"batch-{i}", False, 0) for i in range(2)]
    async with aiohttp.ClientSession() as http:
        for salt, cached in [("one", 0), ("one", len(PROMPT) - 1), ("two", 0)]:
            client = HttpEngineClient(served.url, http, extra_key=partial(str, salt), **options)
            found: list[Any] = await client.generate_batch(requests)
            assert {generation.cached_tokens for generation in found} == {cached}


async def test_a_cut_file_never_reaches_the_server(served: Served) -> None:
    before = await served.checksums()

    def cut(bucket: Any, delivery: Any) -> None:
        if bucket.index == 0:
            os.truncate(delivery["file"], 100)

    served.trainer.damage = cut
    with pytest.raises(WeightSyncError, match="it has 100"):
        await served.publish()
    assert await served.checksums() == before
    assert (await served.generate("after"))["meta_info"]["weight_version"] != str(served.version + 1)
