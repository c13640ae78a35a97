"""The publisher with the transports ``tensor`` and ``distributed``, against real SGLang as it comes."""

from __future__ import annotations

import json
import os
import signal
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
from miles_core.app.processes import child
from miles_core.engine.sglang.plugin import SGLang
from miles_core.errors import EngineError
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.types import Bucket
from miles_core.weights.choice import OWN_ENDPOINTS
from miles_core.weights.publish import Publisher, PublishResult
from miles_core.weights.source import WeightSource
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.distributed import Distributed
from miles_plugins.transports.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
BRIDGES: dict[str, Any] = {"Qwen3ForCausalLM": Qwen3, "Qwen3MoeForCausalLM": Qwen3Moe}
TRANSPORTS: dict[str, Any] = {"tensor": Tensor, "distributed": Distributed}
TOLERANCE = 0.1
"""In nats, for the median of tokens: bfloat16 can flip an expert, and then single tokens differ by more."""
PROMPT = [5, 9, 14, 7, 30, 21, 8, 11]
SHARED = Path("/dev/shm")
RUN = """
[run]
steps = 1
[model]
path = "unused"
[data]
use = "jsonl"
path = "tasks.jsonl"
[rollout]
groups_per_step = 1
group_size = 2
max_context_tokens = 64
max_response_tokens = 16
[[environments]]
use = "lookup"
[[rewards]]
use = "exact_match"
[engine]
use = "sglang"
"""


class Trainer:
    """A trained model in this process, in float32, whose weights are those of the checkpoint and noise."""

    def __init__(self, checkpoint: Path, transport: Any) -> None:
        facts = json.loads((checkpoint / "config.json").read_text())
        bridge = BRIDGES[facts["architectures"][0]]
        self.build = partial(bridge(None, None).build, str(checkpoint), seed=0)
        self.model = self.build(dtype="float32", init="pretrained")
        self.perturb(1)
        tensors = self.model.state_dict(keep_vars=True)
        layout = build_layout(bridge.mapping, parameter_table(tensors), facts)
        self._source = WeightSource(layout, lambda: tensors, lambda _: transport)
        self.before_send: Any = None

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

    async def stage(self, bucket: Bucket) -> Any:
        if self.before_send is not None:
            await self.before_send(bucket)
        return await anyio.to_thread.run_sync(self._source.stage, bucket)

    async def release(self, delivery: Any) -> None:
        await anyio.to_thread.run_sync(self._source.release, delivery)

    async def transport_path(self) -> str:
        return self._source.path()


class Choice:
    """One way for all updates."""

    def __init__(self, way: str) -> None:
        self._updates = OWN_ENDPOINTS[way](way, "in_place")

    async def choose(self, engines: Any, source: Any) -> Any:
        return self._updates

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        pass

    def failed(self, transport: str, reason: str) -> bool:
        return False


class Run:
    """A trainer, and the engines of its model."""

    def __init__(self, way: str, trainer: Trainer, http: aiohttp.ClientSession, *urls: str, timeout: float = 60.0):
        self.trainer, self.http, self.fleet = trainer, http, SimpleNamespace(urls=urls)
        self.version = 100
        self._publisher = Publisher(
            self.fleet, trainer, http, bucket_bytes=1 << 14, timeout=timeout, pause_mode="in_place",
            choice=Choice(way),
        )  # fmt: skip

    async def publish(self) -> PublishResult:
        """The trainer's weights as the next version."""
        self.version += 1
        return await self._publisher.publish(self.version)

    async def post(self, url: str, path: str, body: Any) -> Any:
        async with self.http.post(url + path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def distance(self, url: str) -> float:
        """How far an engine's logprobs are from those of the trained weights: the median."""
        sampling = {"max_new_tokens": 64, "ignore_eos": True}
        body = {
            "input_ids": PROMPT,
            "sampling_params": sampling,
            "return_logprob": True,
            "extra_key": os.urandom(8).hex(),
        }
        reply = await self.post(url, "/generate", body)
        assert reply["meta_info"]["weight_version"] == str(self.version)
        ids = torch.tensor(reply["output_ids"])
        rows = self.trainer.logprobs(PROMPT + reply["output_ids"])[len(PROMPT) - 1 : -1]
        found = torch.tensor([row[0] for row in reply["meta_info"]["output_token_logprobs"]])
        return float((found - rows.gather(1, ids[:, None])[:, 0]).abs().median())

    async def checksums(self, url: str) -> list[dict[str, str]]:
        """By parameter, of each rank."""
        reply = await self.post(url, "/weights_checker", {"action": "checksum"})
        return [rank["checksums"] for rank in reply["ranks"]]


@pytest.fixture(params=list(TRANSPORTS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def transport(way: str) -> Iterator[Any]:
    made = TRANSPORTS[way](None, PluginContext())
    yield made
    made.close()


@pytest.fixture
async def run(sglang: Any, way: str, transport: Any) -> AsyncIterator[Run]:
    """The session's server of a model; it gets its first weights and version back."""
    async with aiohttp.ClientSession() as http:
        made = Run(way, Trainer(Path(sglang.model_path), transport), http, sglang.url)
        yield made
        body = {"model_path": sglang.model_path, "weight_version": "0"}
        await made.post(sglang.url, "/update_weights_from_disk", body)
        await made.post(sglang.url, "/continue_generation", {})


def torch_memory() -> set[str]:
    """Names of shared memory that torch made."""
    return {path.name for path in SHARED.glob("torch_*")}


async def test_every_byte_that_is_served_comes_from_the_update(run: Run, sglang: Any) -> None:
    memory = torch_memory()
    result = await run.publish()
    assert result.path == {"tensor": "shared memory", "distributed": "broadcast by gloo"}[result.transport]
    assert await run.distance(sglang.url) < TOLERANCE
    published = await run.checksums(sglang.url)
    await run.post(sglang.url, "/weights_checker", {"action": "reset_tensors"})
    spoiled = await run.checksums(sglang.url)
    assert [name for name in published[0] if published[0][name] == spoiled[0][name]] == []
    await run.publish()
    assert await run.checksums(sglang.url) == published
    run.trainer.perturb(2)
    await run.publish()
    assert await run.distance(sglang.url) < TOLERANCE
    assert torch_memory() <= memory


async def test_an_update_that_another_driver_left_open_does_not_stop_this_one(run: Run, sglang: Any) -> None:
    await run.post(sglang.url, "/begin_weight_update", {})
    await run.publish()
    assert await run.distance(sglang.url) < TOLERANCE


@asynccontextmanager
async def _server(checkpoint: Path, folder: Path, **options: Any) -> AsyncIterator[Any]:
    """A server of SGLang of a test's own."""
    config = folder / "run.toml"
    config.write_text(RUN)
    plugin = SGLang(SGLang.Config(context_length=256, max_running_requests=2, **options), PluginContext())
    command = plugin.command(str(checkpoint), index=0, config_path=str(config))
    settings: Any = {"log": folder / "server.log", "error": EngineError, "start_timeout": 300.0}
    async with child("sglang", command.argv, environment=command.environment, **settings) as running:
        yield running


@pytest.mark.parametrize("model", ["moe"], indirect=True)  # a server of its own for each; the other tests take both
async def test_two_ranks_of_one_engine_and_another_engine_get_their_parts(
    run: Run, sglang: Any, tmp_path: Path, way: str
) -> None:
    """Then the other engine is killed in the middle of an update, and the first goes on."""
    async with _server(Path(sglang.model_path), tmp_path, tp_size=2) as other:
        url = other.ready["url"]
        run.fleet.urls = (url, sglang.url)
        assert (await run.publish()).lost == {}
        for each in run.fleet.urls:
            assert await run.distance(each) < TOLERANCE
        assert len(await run.checksums(url)) == 2

        async def kill(bucket: Bucket) -> None:
            if bucket.index == 1:
                os.killpg(other.process.pid, signal.SIGKILL)

        run.trainer.before_send = kill
        run.trainer.perturb(3)
        result = await run.publish()
        assert list(result.lost) == [url]
        run.trainer.before_send = None
        assert await run.distance(sglang.url) < TOLERANCE
        run.fleet.urls = (sglang.url,)
        run.trainer.perturb(4)
        await run.publish()
        assert await run.distance(sglang.url) < TOLERANCE
