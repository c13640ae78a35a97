"""Requests that an update meets: each token has the version that made it, none is lost, and none comes twice.

What a token's logprob must be, given the tokens before it: ``abort`` and ``retract`` compute keys and values again, so
it is that of the version's own weights. ``in_place`` keeps the keys and values of what was fed before the update: there
the new model goes on from the cache of the old one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import anyio.to_thread
import numpy as np
import pytest
import torch
from transformers import DynamicCache

from miles_core.api import PluginContext
from miles_core.app.fleet import Fleet
from miles_core.app.fleet_client import FleetClient
from miles_core.app.updates import FleetUpdates
from miles_core.engine.client import HttpEngineClient
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.types import GenerateRequest, Generation, SamplingParams
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.publish import Publisher
from miles_core.weights.salt import PrefixSalt
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

pytestmark = pytest.mark.anyio
BRIDGE: Any = Qwen3Moe
RUNNING, QUEUED = 8, 2
TOKENS = 500


class EndlessClient(HttpEngineClient):
    """Its requests end at their limit only."""

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        body = super()._body(request)
        body["sampling_params"]["ignore_eos"] = True
        return body


class Trainer:
    """A checkpoint's weights, as a trainer gives them; ``checkpoint`` may be set to another one."""

    def __init__(self, checkpoint: str, transport: Memory) -> None:
        self.checkpoint, self._transport = checkpoint, transport
        self.config = json.loads(Path(checkpoint, "config.json").read_text())
        self._source: Any = None

    async def layout(self) -> Any:
        built = BRIDGE(None, None).build(self.checkpoint, dtype="float32", init="pretrained", seed=0)
        tensors = built.state_dict(keep_vars=True)
        layout = build_layout(BRIDGE.mapping, parameter_table(tensors), self.config)
        self._source = WeightSource(layout, lambda: tensors, lambda _: self._transport)
        return layout

    async def open_update(self, transport: str, opening: Any) -> None:
        self._source.open(transport, opening)

    async def stage(self, bucket: Any) -> Any:
        return await anyio.to_thread.run_sync(self._source.stage, bucket)

    async def release(self, delivery: Any) -> None:
        self._source.release(delivery)

    async def transport_path(self) -> str:
        return str(self._source.path())


@dataclass
class Run:
    """One engine as a run has it: a fleet, its updates, and the client of its sessions."""

    served: Any
    trainer: Trainer
    updates: FleetUpdates
    client: FleetClient
    version: int
    requests: list[GenerateRequest] = field(default_factory=list)
    shown: dict[str, list[int]] = field(default_factory=dict)
    found: dict[str, Generation] = field(default_factory=dict)

    async def publish(self, suffix: str) -> None:
        self.trainer.checkpoint = f"{self.served.model_path}{suffix}"
        self.version += 1
        await self.updates.publish(self.version)

    async def generate(self, request: GenerateRequest, begun: Callable[[], None]) -> None:
        shown = self.shown[request.rid] = []

        def on_tokens(ids: Any) -> None:
            shown.extend(ids)
            if len(shown) >= 3:
                begun()

        self.found[request.rid] = await self.client.generate(request, on_tokens=on_tokens)

    async def meet_an_update(self) -> None:
        """Begin requests, publish other weights while they run, and wait for their ends."""
        self.requests = requests()
        all_begun, not_begun = anyio.Event(), {one.rid for one in self.requests[:RUNNING]}

        def begun(rid: str) -> None:
            not_begun.discard(rid)
            if not not_begun:
                all_begun.set()

        async with anyio.create_task_group() as tasks:
            for request in self.requests[:RUNNING]:
                tasks.start_soon(self.generate, request, partial(begun, request.rid))
            await all_begun.wait()
            for request in self.requests[RUNNING:]:
                tasks.start_soon(self.generate, request, lambda: None)
            await self.publish("-2")


def requests() -> list[GenerateRequest]:
    """Some that run at once, and some that have to wait."""
    run = uuid.uuid4().hex  # SGLang aborts the rid of a stream two seconds after its end, whoever has it by then
    made = []
    for number in range(RUNNING + QUEUED):
        sampling = SamplingParams(max_new_tokens=TOKENS if number < RUNNING else 20, sampling_seed=number)
        made.append(GenerateRequest((3 + number, 4, 5, 6), sampling, f"{run}-{number}.", True))
    return made


class Gate:
    """No router: one engine gets all."""

    async def add(self, url: str) -> None:
        pass

    async def remove(self, url: str, *, drop: bool = False) -> None:
        pass

    async def check(self, url: str) -> None:
        pass

    async def answers(self, url: str) -> bool:
        return True


@pytest.fixture(params=["in_place", "retract", "abort"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def run(served: Any, mode: Any, tmp_path: Path) -> AsyncIterator[Run]:
    transport, salt, gate = Memory(None, PluginContext()), PrefixSalt(), Gate()
    trainer = Trainer(served.model_path, transport)
    mappings = {"torch": BRIDGE.mapping, **BRIDGE.engine_mappings}

    def layout_of(table: Any, source: Any) -> Any:
        return build_layout(mappings[table.naming], table, trainer.config, source.tensors)

    @asynccontextmanager
    async def launch(_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(ready={"url": served.url}, ended=anyio.sleep_forever)

    kind: Any = "sglang" if served.engine == "sglang" else "miles"
    facts = TransportFacts.of("memory", Memory)
    choice = NamedChoice(TransportWay(facts, kind, mode, layout_of, frozenset(mappings)))
    fleet = Fleet([("engine-0", launch)], gate, version=0, max_restarts=0)
    version = (await served.get("/weights/layout"))[1]["version"]
    async with fleet.running(), aiohttp.ClientSession() as http:
        await fleet.open(gate)
        options: Any = {"vocab_size": trainer.config["vocab_size"], "context_length": 2048, "routing": served.routing}
        client = EndlessClient(served.url, http, extra_key=lambda: salt.current, **options)
        publisher = Publisher(
            fleet, trainer, http, bucket_bytes=1 << 14, timeout=60.0, pause_mode=mode, choice=choice, salt=salt
        )
        none: Any = None
        updates = FleetUpdates(fleet, publisher, none, tmp_path)
        made = Run(served, trainer, updates, FleetClient(client, fleet, served.routing), version)
        yield made
        await made.publish("")
    transport.close()


@pytest.mark.parametrize("model", ["moe"], indirect=True)  # a dense model proves nothing more
async def test_every_token_has_the_version_that_made_it(run: Run, mode: str, references: Callable[[str], Any]) -> None:
    await run.meet_an_update()
    old, new = references(run.served.model), references(f"{run.served.model}-2")
    straddling = 0
    for request in run.requests:
        found, ids = run.found[request.rid], list(request.input_ids)
        output = found.output_ids.tolist()
        assert (len(output), found.finish_reason.type) == (request.sampling.max_new_tokens, "length"), found
        assert run.shown[request.rid] == output, "each token once"
        cut = cut_of(found, run.version)
        before, after = old.logprobs(ids, output), new.logprobs(ids, output)
        kept = went_on(old, new, ids, output, cut) if mode == "in_place" and cut else None
        late = after[cut:] if kept is None else logprobs_of(kept.logits[0], output[cut:])
        assert found.logprobs == pytest.approx(np.concatenate([before[:cut], late]), abs=1e-3)
        fed = fed_before(run, mode, ids, cut)
        rows = [one.routes([*ids, *output])[:-1] for one in (old, new)]
        late = rows[1][fed:] if kept is None else rows_of(kept.router_logits)
        assert found.routed_experts is not None
        assert (found.routed_experts == np.concatenate([rows[0][:fed], late])).mean() > 0.999
        if 0 < cut < TOKENS - 20:
            straddling += 1
            assert_others_are_wrong(found, cut, before, after, mode)
    assert straddling >= RUNNING // 2


def cut_of(found: Generation, version: int) -> int:
    """How many tokens the old version made, where spans tile the output."""
    spans = found.versions
    assert [0, *(span.end for span in spans)] == [*(span.start for span in spans), len(found.output_ids)]
    names = [span.version for span in spans]
    assert names in ([0, version], [version], [0])
    return spans[0].end if names[0] == 0 else 0


def fed_before(run: Run, mode: str, prompt: list[int], cut: int) -> int:
    """How many routing rows are those of the old version: its last token was not fed to it.

    SGLang keeps the rows of the pass that came last, and after ``retract`` that one feeds everything again.
    """
    if not cut or (mode == "retract" and run.served.engine == "sglang"):
        return 0
    return len(prompt) + cut - 1


def went_on(old: Any, new: Any, prompt: list[int], output: list[int], cut: int) -> Any:
    """The new model on the rest, after keys and values of what the old one was fed."""
    ids, fed, cache = torch.tensor([[*prompt, *output]]), len(prompt) + cut - 1, DynamicCache()
    with torch.no_grad():
        old.model(ids[:, :fed], cache=cache)
        return new.model(ids[:, fed:-1], cache=cache, output_router_logits=True)


def logprobs_of(logits: torch.Tensor, output: list[int]) -> Any:
    return logits.log_softmax(-1).gather(-1, torch.tensor(output)[:, None])[:, 0].numpy()


def rows_of(routers: Any) -> Any:
    return np.stack([logits.topk(2, -1).indices.numpy() for logits in routers], 1)


def assert_others_are_wrong(found: Generation, cut: int, before: Any, after: Any, mode: str) -> None:
    """The comparison could have failed: the two models differ, and so do the two caches."""
    differences = np.abs(found.logprobs[:cut] - after[:cut]), np.abs(found.logprobs[cut:] - before[cut:])
    assert min(each.max() for each in differences) > 0.1
    if mode == "in_place":
        assert np.abs(found.logprobs[cut:] - after[cut:]).max() > 0.01
