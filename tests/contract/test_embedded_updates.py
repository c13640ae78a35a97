"""The embedded engine takes weights by its own calls, and nothing that would have to be unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import pytest

from miles_core.api import PluginContext
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.publish import Publisher
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("engine", ["embedded"], indirect=True)]
PROMPT = [3, 4, 5, 6, 7]
PICKLED = {"serialized_named_tensors": ["gASVAAAAAAAAAAA="]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_tensor", PICKLED),
        ("/update_weights_from_ipc", {"zmq_handles": {}}),
        ("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}),
        ("/update_weights_from_disk", {"model_path": "/tmp"}),
        ("/init_weights_update_group", {"master_address": "127.0.0.1"}),
        ("/begin_weight_update", {}),
        ("/end_weight_update", {}),
    ],
)
async def test_sglangs_ways_are_a_404_that_names_ours(served: Any, path: str, body: Any) -> None:
    status, reply = await served.post(path, body)
    assert status == 404
    assert "/weights/begin" in reply["error"]["message"]


class Trainer:
    """A checkpoint's weights, as a trainer gives them."""

    def __init__(self, checkpoint: Path, model: str, transport: Memory) -> None:
        bridge: Any = {"moe": Qwen3Moe, "dense": Qwen3}[model]
        built = bridge(None, None).build(str(checkpoint), dtype="float32", init="pretrained", seed=0)
        tensors = built.state_dict(keep_vars=True)
        self.mapping, self.config = bridge.mapping, built.config.to_dict()
        layout = build_layout(self.mapping, parameter_table(tensors), self.config)
        self._source = WeightSource(layout, lambda: tensors, lambda name: transport)

    def layout_of(self, table: Any, source: Any) -> Any:
        return build_layout(self.mapping, table, self.config, source.tensors)

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


async def test_an_update_is_a_span_of_a_request_in_flight(served: Any, references: Callable[[str], Any]) -> None:
    transport = Memory(None, PluginContext())
    try:
        committed = (await served.post("/weights/abort", {}))[1]["version"]

        async def publish(suffix: str, version: int) -> None:
            trainer = Trainer(Path(f"{served.model_path}{suffix}"), served.model, transport)
            facts, namings = TransportFacts.of("memory", Memory), frozenset({"torch"})
            choice = NamedChoice(TransportWay(facts, "miles", "in_place", trainer.layout_of, namings))
            options: Any = {"bucket_bytes": 1 << 16, "timeout": 60.0, "choice": choice}
            fleet: Any = SimpleNamespace(urls=(served.url,))
            await Publisher(fleet, trainer, served.http, pause_mode="in_place", **options).publish(version)

        async with served.in_flight() as flight:
            await publish("-2", committed + 1)
        meta = flight.reply["meta_info"]
        assert [span["version"] for span in meta["weight_versions"]] == ["0", str(committed + 1)]
        reply = await served.generate(PROMPT, {"max_new_tokens": 8, "ignore_eos": True}, return_logprob=True)
        found = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        expected = references(f"{served.model}-2").logprobs(PROMPT, reply["output_ids"])
        assert found == pytest.approx(expected, abs=1e-4)
        await publish("", committed + 2)
    finally:
        transport.close()
    assert json.dumps(await served.get("/model_info")).count(str(committed + 2))
