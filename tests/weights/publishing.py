"""A trainer, and publishers of toy engines over loopback HTTP."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import torch

from miles_core.weights.publish import Publisher
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

IDS = [1, 2, 3, 5, 8]


@pytest.fixture
def trained(tiny):
    return tiny(seed=1)


@pytest.fixture
def trainer(trained, memory, source_of, trainer_of):
    return trainer_of(source_of(trained, memory))


@pytest.fixture
async def fleet(memory, serve, toy_engine, trainer, http, fleet_of, choice_of):
    """``engines, publisher = await fleet(model, ...)``."""
    async with AsyncExitStack() as stack:

        async def start(*models, **settings):
            engines = [toy_engine.ToyEngine(model, memory) for model in models]
            urls = [await stack.enter_async_context(serve(engine.app)) for engine in engines]
            settings = {"bucket_bytes": 4000, "timeout": 20.0, "pause_mode": "in_place", **settings}
            choice = choice_of("memory", Memory)
            return engines, Publisher(fleet_of(urls), trainer, http, choice=choice, **settings)

        yield start


@pytest.fixture
def alone(trainer, http, fleet_of, choice_of):
    """Makes the publisher of one engine."""

    def make(url, **settings):
        settings = {"bucket_bytes": 4000, "timeout": 30.0, "pause_mode": "abort", **settings}
        return Publisher(fleet_of([url]), trainer, http, choice=choice_of("memory", Memory), **settings)

    return make


def reference(trained, dtype, path):
    """The trained model as an engine of that type would load it from disk."""
    trained.save_pretrained(path)
    model = Qwen3Moe(None, None).build(str(path), dtype=dtype, init="pretrained", seed=0)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits.float()
