"""A pair of real engines with one tiny model of random weights; version ``v`` is the model of seed ``v``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from miles_core.app.wiring import read_model
from miles_core.kinds.base import PluginContext
from miles_core.plugins.hub import Hub

from .drill_transport import Drill
from .engines import Engine, Rig, Trainer, ready, start_engine
from .traffic import Traffic

MODEL = Path(__file__).parents[3] / "examples" / "quickstart" / "model"


@pytest.fixture(scope="session")
def facts() -> Any:
    return read_model(Hub.discover(), MODEL)


@pytest.fixture(scope="session")
def models(facts: Any) -> Any:
    """``models(version)``: random weights, wide enough apart for their logprobs to tell versions from each other."""

    @cache
    def make(version: int) -> torch.nn.Module:
        model = facts.bridge.build(str(MODEL), dtype="float32", init="random", seed=version)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4.0)
        return model.eval()

    torch.set_num_threads(1)
    return make


@pytest.fixture(scope="session")
def checkpoint(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 0 as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("checkpoint")
    models(0).save_pretrained(folder)
    for file in MODEL.iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def drill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRILL_FOLDER", str(tmp_path))
    monkeypatch.delenv("DRILL_NAME", raising=False)
    return tmp_path


@pytest.fixture
async def http() -> Any:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def start(drill_folder: Path, checkpoint: Path) -> Iterator[Any]:
    """``start(name, *options, model=...)`` begins to start an engine that ends with the test."""
    started: list[Engine] = []

    def begin(name: str, *options: str, model: Path = checkpoint) -> Engine:
        engine = start_engine(name, model, drill_folder, *options)
        started.append(engine)
        return engine

    yield begin
    for engine in started:
        engine.end()


@pytest.fixture
async def rig(start: Any, facts: Any, models: Any, http: aiohttp.ClientSession) -> Any:
    """Two engines that serve version 0."""
    transport = Drill(None, PluginContext())
    engines = [start("engine-0"), start("engine-1")]
    await ready(engines, http)
    yield Rig(engines, Trainer(facts, models, transport), http, facts, models)
    transport.close()


@pytest.fixture
def traffic(http: aiohttp.ClientSession, facts: Any) -> Traffic:
    return Traffic(http, facts)
