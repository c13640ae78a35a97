"""Releasing and resuming memory over HTTP, and weight updates after it, by the real publisher."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch

from miles_core.engine.embedded.server import create_app
from miles_core.errors import WeightSyncError
from miles_core.kinds.base import PluginContext
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.publish import Publisher
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.routes import routes
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
BODY = {
    "input_ids": [3, 4, 5, 6],
    "sampling_params": {"max_new_tokens": 8, "temperature": 1.0, "sampling_seed": 1, "ignore_eos": True},
    "return_logprob": True,
    "return_routed_experts": True,
}
NOT_SERVING = {
    "released": "updating: the memory of kv_cache and weights is released",
    "lost": "updating: the weights were released; publish a whole version",
}


UNTIED = {"tie_word_embeddings": False}


def layout_of(table: Any, source: Any) -> Any:
    return build_layout(Qwen3Moe.mapping, table, UNTIED, source.tensors)


class Trainer:
    """The trainer's side of an update, for a model in this process."""

    def __init__(self, model: Any, transport: Memory) -> None:
        tensors = model.state_dict()
        layout = build_layout(Qwen3Moe.mapping, parameter_table(tensors), UNTIED)
        self.source = WeightSource(layout, lambda: tensors, lambda name: transport)

    async def layout(self) -> Any:
        return self.source.layout

    async def open_update(self, transport: str, opening: Any) -> None:
        await anyio.to_thread.run_sync(self.source.open, transport, opening)

    async def transport_path(self) -> str:
        return self.source.path()

    async def stage(self, bucket: Any) -> Any:
        return await anyio.to_thread.run_sync(self.source.stage, bucket)

    async def release(self, delivery: Any) -> None:
        await anyio.to_thread.run_sync(self.source.release, delivery)


class Site:
    """One served engine with its receiver, and a trainer whose weights equal the engine's first ones."""

    def __init__(self, engine: Any, url: str, http: aiohttp.ClientSession, trainer: Trainer) -> None:
        self.engine, self.url, self._http, self.trainer = engine, url, http, trainer
        way = TransportWay(TransportFacts.of("memory", Memory), "miles", "in_place", layout_of, frozenset({"torch"}))
        options: Any = {"bucket_bytes": 8000, "timeout": 20.0, "pause_mode": "in_place", "choice": NamedChoice(way)}
        self.publisher = Publisher(SimpleNamespace(urls=(url,)), trainer, http, **options)

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._http.post(self.url + path, json={} if body is None else body) as response:
            return response.status, await response.json()

    async def ok(self, path: str, body: Any = None) -> Any:
        status, reply = await self.post(path, body)
        assert status == 200, reply
        return reply

    async def generate(self) -> Any:
        reply = await self.ok("/generate", BODY)
        for key in ("id", "cached_tokens", "weight_version", "weight_versions"):
            del reply["meta_info"][key]
        return reply

    async def health(self) -> tuple[int, str]:
        async with self._http.get(f"{self.url}/health") as response:
            return response.status, await response.text()


@pytest.fixture
def site(make_engine: Any, serve: Any, own_moe: Any) -> Any:
    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Site]:
        engine, transport = make_engine(own_moe, **settings), Memory(None, PluginContext())
        trained = type(own_moe)(own_moe.config)
        trained.load_state_dict(own_moe.state_dict())
        parameters = engine.parameters()
        receiver = WeightReceiver(parameter_table(parameters), parameters, lambda name: transport, engine, version=0)
        app = create_app(engine, routes(receiver, lambda: {"memory": None}), discarding=receiver.discarding)
        async with serve(app) as url, aiohttp.ClientSession() as http:
            yield Site(engine, url, http, Trainer(trained, transport))
        transport.close()

    return opened


def held(engine: Any) -> int:
    """Bytes of the engine's parameters, KV stores and slot tables."""
    scheduler = engine._scheduler
    stores = [store for pair in scheduler._runner._cache._stores.values() for store in pair]
    tables = [scheduler.slots.tokens, scheduler.slots.logprobs, scheduler._recorder._store]
    weights = sum(tensor.untyped_storage().nbytes() for tensor in engine.parameters().values())
    return weights + sum(store.nbytes for store in stores) + sum(table.nbytes for table in tables)


async def test_the_same_result_before_a_release_and_after_resume_and_update(site: Any) -> None:
    async with site(deterministic=True) as at:
        before = await at.generate()
        assert held(at.engine) > 0
        released = await at.ok("/release_memory_occupation")
        assert released["message"] == "Released: kv_cache, weights."
        assert held(at.engine) == 0
        status, text = await at.health()
        assert status == 503
        assert NOT_SERVING["released"] in text
        resumed = await at.ok("/resume_memory_occupation")
        assert resumed["message"] == "Resumed: kv_cache, weights."
        status, text = await at.health()
        assert status == 503
        assert NOT_SERVING["lost"] in text
        await at.publisher.publish(1)
        assert (await at.health())[0] == 200
        assert await at.generate() == before
        assert at.engine.weight_version == "1"


async def test_requests_that_come_while_memory_is_released_wait_for_the_update(site: Any) -> None:
    replies: list[Any] = []
    async with site(deterministic=True) as at:
        before = await at.generate()

        async def ask() -> None:
            replies.append(await at.generate())

        await at.ok("/release_memory_occupation")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(10):
                while not at.engine.load()["num_requests"]:
                    await anyio.lowlevel.checkpoint()
            again = await at.ok("/release_memory_occupation")
            assert again["message"] == "Nothing to do: kv_cache, weights had been released."
            await at.ok("/continue_generation")
            await at.ok("/resume_memory_occupation", {"tags": ["weights"]})
            await at.publisher.publish(1)
            assert "the memory of kv_cache is released" in at.engine.out_of_service
            assert not replies
            await at.ok("/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert replies == [before]
        resumed = await at.ok("/resume_memory_occupation")
        assert resumed["message"] == "Nothing to do: kv_cache, weights was not released."


async def test_a_released_cache_alone_needs_no_update(site: Any) -> None:
    async with site(deterministic=True) as at:
        before = await at.generate()
        await at.ok("/release_memory_occupation", {"tags": ["kv_cache"]})
        assert at.engine.load()["num_cached_tokens"] == 0
        assert "kv_cache is released" in (await at.health())[1]
        await at.ok("/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert (await at.health())[0] == 200
        assert await at.generate() == before


async def test_requests_inside_refuse_a_release(site: Any, gate: Any) -> None:
    async with site() as at:
        steps = gate(at.engine)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.ok, "/generate", BODY)
            await steps.at_forward()
            tasks.start_soon(at.ok, "/pause_generation", {"mode": "in_place"})
            while not at.engine.paused:
                steps.permit()
                await anyio.lowlevel.checkpoint()
            steps.open()
            status, reply = await at.post("/release_memory_occupation", {"tags": ["weights"]})
            assert status == 400
            assert "Abort them or wait until they end." in reply["error"]["message"]
            assert at.engine.out_of_service is None
            await at.ok("/continue_generation")
        await at.ok("/release_memory_occupation", {"tags": ["weights"]})


async def test_an_update_into_released_memory_is_refused_before_a_byte(site: Any) -> None:
    async with site() as at:
        await at.ok("/release_memory_occupation", {"tags": ["weights"]})
        with pytest.raises(WeightSyncError, match="the memory of this engine's weights is released") as caught:
            await at.publisher.publish(1)
        assert caught.value.remedy == "Call /resume_memory_occupation before the update."
        assert at.engine.paused
        await at.ok("/resume_memory_occupation")
        await at.publisher.publish(1)
        assert (await at.health())[0] == 200


async def test_half_an_update_after_a_release_serves_nobody(site: Any) -> None:
    """The first bucket arrives, the second never does, and the update is aborted: only a whole one restores service."""
    async with site() as at:
        await at.ok("/release_memory_occupation")
        await at.ok("/resume_memory_occupation")
        stage, staged = at.trainer.stage, []

        async def failing(bucket: Any) -> Any:
            if staged:
                raise WeightSyncError("the trainer died")
            staged.append(bucket)
            return await stage(bucket)

        at.trainer.stage = failing
        with pytest.raises(WeightSyncError, match="the trainer died"):
            await at.publisher.publish(1)
        await at.ok("/continue_generation")
        status, reply = await at.post("/generate", BODY)
        assert status == 503
        assert "weights are torn" in reply["error"]["message"]
        at.trainer.stage = stage
        await at.publisher.publish(1)
        await at.generate()


async def test_an_open_update_refuses_a_release_of_the_weights(site: Any) -> None:
    async with site() as at:
        await at.ok("/weights/begin", {"version": 1, "transport": "memory"})
        status, reply = await at.post("/release_memory_occupation")
        assert status == 409
        assert "the update to version 1 is open" in reply["error"]["message"]
        aborted = await at.ok("/weights/abort")
        assert aborted == {"version": 0, "torn": False}
        await at.ok("/release_memory_occupation")
        assert await at.ok("/weights/abort") == {"version": 0, "torn": True}


@pytest.mark.parametrize("tags", ["weights", ["weight"], [1], {"weights": True}])
async def test_unknown_tags_are_a_400(site: Any, tags: Any) -> None:
    async with site() as at:
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            status, reply = await at.post(path, {"tags": tags})
            assert status == 400
            assert "tags must be a list of kv_cache and weights" in reply["error"]["message"]
        assert (await at.health())[0] == 200


async def test_control_calls_to_a_dead_engine_are_a_503_with_the_cause(site: Any) -> None:
    async with site() as at:
        with torch.no_grad():
            at.engine.parameters()["lm_head.weight"].fill_(float("nan"))
        assert (await at.post("/generate", BODY))[0] == 500
        calls = ["pause_generation", "continue_generation", "flush_cache", "release_memory_occupation"]
        for path in calls:
            status, reply = await at.post(f"/{path}")
            assert (path, status) == (path, 503)
            assert "logits are not finite" in reply["error"]["message"]
        with pytest.raises(WeightSyncError, match="status 503.*logits are not finite"):
            await at.publisher.publish(1)
