"""Weights go from a trainer on a GPU into an engine on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest

from miles_core.api import PluginContext
from miles_core.kinds.train_backends import ModelSource
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.publish import Publisher
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6, 7]


@pytest.fixture(scope="session")
def engine() -> str:
    return "embedded"


@pytest.fixture
def memory() -> Iterator[Memory]:
    transport = Memory(None, PluginContext())
    yield transport
    transport.close()


class Trainer:
    """A backend on the GPU that holds a checkpoint's weights."""

    def __init__(self, checkpoint: Path, served: Any, transport: Memory) -> None:
        bridge: Any = {"moe": Qwen3Moe, "dense": Qwen3}[served.model]
        source = ModelSource(str(checkpoint), bridge(None, PluginContext()), served.routing)
        services = {"model_source": source}
        tensors = TorchBackend(TorchBackendConfig(device="cuda"), PluginContext(services=services)).parameters()
        layout = build_layout(bridge.mapping, parameter_table(tensors), {})
        self._source = WeightSource(layout, lambda: tensors, lambda name: transport)
        self.mapping = bridge.mapping

    async def layout(self) -> Any:
        return self._source.layout

    async def open_update(self, transport: str, opening: Any) -> None:
        await anyio.to_thread.run_sync(self._source.open, transport, opening)

    async def transport_path(self) -> str:
        return self._source.path()

    async def stage(self, bucket: Any) -> Any:
        return await anyio.to_thread.run_sync(self._source.stage, bucket)

    async def release(self, delivery: Any) -> None:
        await anyio.to_thread.run_sync(self._source.release, delivery)


async def test_an_embedded_engine_serves_what_the_gpu_holds(
    served: Any, references: Callable[[str], Any], memory: Memory
) -> None:
    committed = (await served.post("/weights/abort", {}))[1]["version"]
    trainer, fleet = Trainer(Path(f"{served.model_path}-2"), served, memory), SimpleNamespace(urls=(served.url,))

    def layout_of(table: Any, source: Any) -> Any:
        return build_layout(trainer.mapping, table, {}, source.tensors)

    way = TransportWay(TransportFacts.of("memory", Memory), "miles", "in_place", layout_of, frozenset({"torch"}))
    options: Any = {"bucket_bytes": 1 << 16, "timeout": 60.0, "choice": NamedChoice(way)}
    publisher: Any = Publisher(fleet, trainer, served.http, pause_mode="in_place", **options)
    await publisher.publish(committed + 1)
    reply = await served.generate(PROMPT, {"max_new_tokens": 8, "ignore_eos": True}, return_logprob=True)
    found = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
    expected = references(f"{served.model}-2").logprobs(PROMPT, reply["output_ids"])
    assert found == pytest.approx(expected, abs=1e-4)
