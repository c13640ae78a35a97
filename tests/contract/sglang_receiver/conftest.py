"""Real SGLang with our receiver, and the driver's side of it in plain HTTP."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio.from_thread
import anyio.to_thread
import pytest
import torch
import transformers
import xxhash
from safetensors.torch import load_file, save_file

from miles_core.api import Bucket, PluginContext
from miles_core.app.processes import child
from miles_core.engine.sglang.cpu.environment import cpu_environment
from miles_core.engine.sglang.plugin import SGLang
from miles_core.errors import EngineError
from miles_core.lib.layout import build_layout
from miles_core.types import Layout, Opening, ParameterTable, Placement, StreamTargets, TensorSpec

from .trainer_end import TrainerEnd, make_end  # noqa: F401 - a fixture
from .true_layouts import BRIDGES

BUCKET_BYTES = 20_000
# SGLang for a CPU rounds sizes up to 32 for each rank: these need no rounding on two
SIZES = {
    "vocab_size": 70,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 512,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {**SIZES, **EXPERTS, "tie_word_embeddings": False},
    "Qwen3": {**SIZES, "tie_word_embeddings": True},
    "Llama": {**SIZES, "tie_word_embeddings": False, "attention_bias": True},
}
CONFIG = """
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
[train]
replay_routing = false
[engine]
use = "sglang"
"""


@dataclass(frozen=True)
class Checkpoint:
    path: Path

    @property
    def hf_config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return config

    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / "model.safetensors")

    def nudged(self, path: Path) -> Checkpoint:
        """Written to ``path``: one element in fifty is another."""
        tensors = self.tensors()
        for tensor in tensors.values():
            tensor.view(-1)[::50] += 0.5
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        shutil.copy(self.path / "config.json", path)
        return Checkpoint(path)


@dataclass(frozen=True)
class Rank:
    number: int
    table: ParameterTable
    layout: Layout

    @property
    def nbytes(self) -> int:
        """Of all parameters; storage that two share counts once."""
        return sum(parameter.nbytes for parameter in self.table.parameters if parameter.shares is None)

    def checksums(self, tensors: dict[str, torch.Tensor], bucket: Bucket | None = None) -> list[str]:
        """Of a checkpoint's boxes that lie here, or in one bucket."""
        placements = self.layout.placements if bucket is None else bucket.placements
        return [xxhash.xxh3_128(box(tensors, placement)).hexdigest() for placement in placements]

    def buckets(self) -> list[Bucket]:
        """In a stream of this rank's own."""
        buckets: list[Bucket] = []
        some: list[Placement] = []
        for placement in self.layout.placements:
            some.append(placement)
            nbytes = sum(one.nbytes for one in some)
            if nbytes >= BUCKET_BYTES or placement is self.layout.placements[-1]:
                buckets.append(Bucket(len(buckets), tuple(some), nbytes, self.number))
                some = []
        return buckets


def box(tensors: dict[str, torch.Tensor], placement: Placement) -> bytes:
    """The bytes of a box of a checkpoint tensor."""
    whole = tensors[placement.tensor.name].to(getattr(torch, placement.tensor.dtype))
    part = whole[tuple(slice(start, stop) for start, stop in placement.region)]
    return part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


class Server:
    """A server of SGLang with our receiver."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self._http = url, http

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(self.url + path) as reply:
            return reply.status, _decoded(await reply.read())

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self._http.post(self.url + path, json=body) as reply:
            return reply.status, _decoded(await reply.read())

    async def must(self, path: str, body: Any) -> Any:
        status, reply = await self.post(path, body)
        assert status == 200, (path, reply)
        return reply

    async def logprobs(self) -> list[float]:
        sampling = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 0}
        body = {"input_ids": [3, 4, 5, 6, 7], "sampling_params": sampling, "return_logprob": True}
        reply = await self.must("/generate", body)
        return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]

    @asynccontextmanager
    async def in_flight(self, tokens: int) -> AsyncIterator[list[Any]]:
        """A request that has begun; after the block the list has its last event."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": [3, 4, 5], "sampling_params": sampling, "stream": True}
        events: list[Any] = []
        async with self._http.post(f"{self.url}/generate", json=body) as reply:
            await reply.content.readline()
            yield events
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    events[:] = [json.loads(line.removeprefix(b"data: "))]

    async def ranks(self, checkpoint: Checkpoint) -> list[Rank]:
        status, reply = await self.get("/weights/layout")
        assert status == 200, reply
        config = checkpoint.hf_config
        mapping = BRIDGES[config["architectures"][0]].engine_mappings["sglang"]
        sent = {
            name: TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in checkpoint.tensors().items()
        }
        tables = [ParameterTable.from_json(table) for table in reply["ranks"]]
        return [Rank(number, table, build_layout(mapping, table, config, sent)) for number, table in enumerate(tables)]

    async def version(self) -> int:
        return int((await self.get("/weights/layout"))[1]["version"])

    async def update(self, checkpoint: Checkpoint, end: TrainerEnd) -> int:
        """Make a checkpoint's weights the next version; the server must be paused, and stays so."""
        ranks, tensors = await self.ranks(checkpoint), checkpoint.tensors()
        version = await self.version() + 1
        await self.begin(ranks, version, end)
        await self.send(ranks, version, end, tensors)
        await self.finish(ranks, version, tensors)
        return version

    async def begin(self, ranks: Sequence[Rank], version: int, end: TrainerEnd) -> None:
        """On each rank, then in the trainer."""
        streams = []
        for number, rank in enumerate(ranks):
            body = {"version": version, "transport": end.name}
            begun = await self.must(f"/weights/begin?rank={number}", body)
            streams.append(StreamTargets(rank.layout.placements, (begun["offer"],), (begun["base"],)))
        await anyio.to_thread.run_sync(end.open, Opening(version, tuple(streams)))

    async def send(
        self, ranks: Sequence[Rank], version: int, end: TrainerEnd, tensors: dict[str, torch.Tensor]
    ) -> None:
        for number, rank in enumerate(ranks):
            for bucket in rank.buckets():
                payload = b"".join(box(tensors, placement) for placement in bucket.placements)
                delivery = await anyio.to_thread.run_sync(end.send, bucket, payload)
                body = {"version": version, "bucket": bucket.to_json(), "delivery": delivery}
                await self.must(f"/weights/receive?rank={number}", body)
                end.release(delivery)

    async def finish(self, ranks: Sequence[Rank], version: int, tensors: dict[str, torch.Tensor]) -> None:
        """Verify and commit, in the server's own names too."""
        for number, rank in enumerate(ranks):
            sums = {str(bucket.index): rank.checksums(tensors, bucket) for bucket in rank.buckets()}
            await self.must(f"/weights/verify?rank={number}", {"version": version, "checksums": sums})
        for number, rank in enumerate(ranks):
            body = {"version": version, "padding": rank.layout.padding}
            await self.must(f"/weights/commit?rank={number}", body)
        await self.post("/flush_cache", {})  # refused while requests are inside
        await self.must("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()


@pytest.fixture(scope="session")
def make_checkpoint(checkpoints: Path) -> Callable[..., Checkpoint]:
    """``make_checkpoint("Qwen3Moe", seed=1)``, with the tokenizer of the other contract tests."""

    def make(family: str, seed: int = 0) -> Checkpoint:
        path = checkpoints / f"receiver-{family}-{seed}"
        if not path.exists():
            config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
            torch.manual_seed(seed)
            getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(path)
            for file in (checkpoints / "dense").glob("*token*"):
                shutil.copy(file, path)
        return Checkpoint(path)

    return make


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """``with launch(checkpoint, tp_size=2) as url``: a server, started as a run starts it."""
    if cpu_environment() is None:
        message = "SGLang is not set up for this machine: run `make sglang-cpu`"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)

    @asynccontextmanager
    async def serve(checkpoint: Checkpoint, options: dict[str, Any]) -> AsyncIterator[str]:
        folder = tmp_path_factory.mktemp("receiver")
        config = folder / "run.toml"
        config.write_text(CONFIG)
        plugin = SGLang(SGLang.Config(context_length=256, max_running_requests=2, **options), PluginContext())
        command = plugin.command(str(checkpoint.path), index=0, config_path=str(config))
        waits: Any = {"log": folder / "sglang.log", "error": EngineError, "start_timeout": 300.0}
        async with child("sglang", command.argv, environment=command.environment, **waits) as running:
            yield running.ready["url"]

    @contextmanager
    def start(checkpoint: Checkpoint, **options: Any) -> Iterator[str]:
        with (
            anyio.from_thread.start_blocking_portal() as portal,
            portal.wrap_async_context_manager(serve(checkpoint, options)) as url,
        ):
            yield url

    return start


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Server]]:
    """``connect(url)``."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as http:
        yield lambda url: Server(url, http)
