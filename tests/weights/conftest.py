"""Tiny real models, and an engine that serves one over loopback HTTP."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest
import torch
import transformers

from miles_core.api import PluginContext
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.source import WeightSource
from miles_core.weights.transport_facts import TransportFacts
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

from .publishing import alone, fleet, trained, trainer  # noqa: F401 - fixtures
from .receiving import engine, layout, plan, receiver, send, source  # noqa: F401 - fixtures

SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MOE_SIZES = {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny():
    """Makes a tiny random model: ``tiny("Qwen3Moe", seed=1, tie_word_embeddings=True)``."""

    def make(family="Qwen3Moe", *, seed=0, dtype=torch.float32, **settings):
        config_class = getattr(transformers, f"{family}Config")
        model_class = getattr(transformers, f"{family}ForCausalLM")
        config = config_class(**{**(MOE_SIZES if family == "Qwen3Moe" else SIZES), **settings})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return model_class._from_config(config, dtype=dtype, attn_implementation="sdpa").eval()

    return make


@pytest.fixture
def memory():
    transport = Memory(None, PluginContext())
    yield transport
    transport.close()


MAPPINGS = {"torch": Qwen3Moe.mapping, **Qwen3Moe.engine_mappings}


@pytest.fixture
def layout_of():
    """The layout of a model held in this process."""

    def make(model):
        return build_layout(Qwen3Moe.mapping, parameter_table(model.state_dict()), model.config.to_dict())

    return make


@pytest.fixture
def source_of(layout_of):
    """The trainer's end for a model held in this process."""

    def make(model, transport):
        return WeightSource(layout_of(model), lambda: model.state_dict(keep_vars=True), lambda name: transport)

    return make


@pytest.fixture
def way_of(tiny):
    """The way of one transport: ``way_of("memory", Memory)``; engines may name parameters as torch or SGLang."""

    def make(name, transport, *, kind="miles", pause_mode="in_place"):
        config = tiny().config.to_dict()

        def rank_layout(table, sent):
            mapping = MAPPINGS[table.naming.removesuffix("-like")]
            return build_layout(mapping, table, {**config, "tie_word_embeddings": None}, sent.tensors)

        namings = frozenset({"torch", "sglang", "sglang-like"})
        return TransportWay(TransportFacts.of(name, transport), kind, pause_mode, rank_layout, namings)

    return make


@pytest.fixture
def choice_of(way_of):
    """The choice of one transport: ``choice_of("memory", Memory)``."""

    def make(name, transport, **settings):
        return NamedChoice(way_of(name, transport, **settings))

    return make


class Trainer:
    """The trainer's side in this process; ``damage(bucket, delivery)`` runs between staging and sending.

    ``openings`` are what it was told of each update.
    """

    def __init__(self, made):
        self.source = made
        self.staged = 0
        self.openings = []
        self.damage = None

    async def layout(self):
        return self.source.layout

    async def open_update(self, transport, opening):
        self.openings.append((transport, opening))
        await anyio.to_thread.run_sync(self.source.open, transport, opening)

    async def stage(self, bucket):
        delivery, checksums = await anyio.to_thread.run_sync(self.source.stage, bucket)
        self.staged += 1
        if self.damage is not None:
            await self.damage(bucket, delivery)
        return delivery, checksums

    async def transport_path(self):
        return self.source.path()

    async def release(self, delivery):
        await anyio.to_thread.run_sync(self.source.release, delivery)


@pytest.fixture
def trainer_of():
    """Makes the trainer's side of a source."""
    return Trainer


@dataclass
class Fleet:
    """Engines that live."""

    urls: list[str]


@pytest.fixture
def fleet_of():
    """Makes a set of engines from their URLs."""
    return Fleet


@pytest.fixture(scope="session")
def toy_engine():
    """The module ``toy_engine.py``."""
    return module("toy_engine")


@pytest.fixture(scope="session")
def toy_sglang():
    """The module ``toy_sglang.py``."""
    return module("toy_sglang")


def module(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def serve(toy_engine):
    """``async with serve(app) as url``."""

    @asynccontextmanager
    async def serving(app):
        sock, url = toy_engine.listening_socket()
        server = toy_engine.uvicorn_server(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(server.serve, sockets=[sock]))
            try:
                yield url
            finally:
                server.should_exit = True

    return serving


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session
