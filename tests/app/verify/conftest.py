"""A run folder as a driver leaves it, and engines over loopback that hold what it says, all in this process."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest
import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.app.http_server import bind, server_config, url_of
from miles_core.app.run_lock import run_lock
from miles_core.app.verify.checkpoint import CheckpointTensors
from miles_core.app.weights_record import EngineRecord, WeightsRecord, write_record
from miles_core.errors import EngineError
from miles_core.lib.layout import parameter_table
from miles_core.weights.publish import box_key
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.routes import routes

SAVED = Path(__file__).parents[1] / "format-1"
QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "config.toml"
VERSION = 2


class Host:
    """What a receiver asks of its engine."""

    def __init__(self) -> None:
        self._forward = threading.Lock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._forward:
            yield

    def set_out_of_service(self, reason: str | None) -> None: ...

    def finalise(self) -> None: ...

    def commit_version(self, version: int) -> None: ...


@dataclass
class Engine:
    """An engine with a receiver of ours; ``tensors`` are its live parameters, ``asked`` counts checksum requests.

    ``before`` are called one by one before the requests are answered.
    """

    tensors: dict[str, torch.Tensor]
    version: int = VERSION
    asked: int = 0
    before: list = field(default_factory=list)
    receiver: WeightReceiver = field(init=False)

    def __post_init__(self) -> None:
        table = parameter_table(self.tensors)
        self.receiver = WeightReceiver(table, self.tensors, lambda name: None, Host(), version=self.version)

    @property
    def app(self):
        inner = Starlette(routes=routes(self.receiver))

        async def counted(scope, receive, send) -> None:
            if scope["path"] == "/weights/checksums":
                self.asked += 1
                if self.before:
                    self.before.pop(0)()
            await inner(scope, receive, send)

        return counted


@dataclass
class PlainSglang:
    """SGLang without our receiver: its checksums are by its own names; ``after`` are called when it gave them."""

    sums: dict[str, str]
    version: int = VERSION
    after: list = field(default_factory=list)

    @property
    def app(self):
        def say(content):
            async def answer(request):
                said = JSONResponse(content())
                if request.method == "POST" and self.after:
                    self.after.pop(0)()
                return said

            return answer

        return Starlette(
            routes=[
                Route("/model_info", say(lambda: {"weight_version": str(self.version)})),
                Route("/server_info", say(lambda: {"dtype": "auto", "tp_size": 1})),
                Route("/weights_checker", say(lambda: {"ranks": [{"checksums": self.sums}]}), methods=["POST"]),
            ]
        )


@dataclass
class LiveRun:
    """A run that is going on; ``record`` is what it last committed."""

    folder: Path
    record: WeightsRecord

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters as an engine holds them, apart from any other engine's."""
        saved = load_file(self.folder / "checkpoints" / "step-2" / "model.safetensors")
        return {name: tensor.clone() for name, tensor in saved.items()}

    def write(self, *engines: EngineRecord, **changes: object) -> None:
        self.record = WeightsRecord(**{**self._fields(), "engines": engines, **changes})
        write_record(self.folder, self.record)

    def _fields(self) -> dict[str, object]:
        return {name: getattr(self.record, name) for name in WeightsRecord.__dataclass_fields__}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveRun]:
    folder = shutil.copytree(SAVED, tmp_path / "run")
    config = QUICKSTART.read_text().replace('path = "model"', f'path = "{folder}/checkpoints/step-2"')
    (folder / "config.toml").write_text(config)
    (folder / "plugins.json").write_text(json.dumps([]))
    saved = CheckpointTensors(folder / "checkpoints" / "step-2")
    sums = {
        box_key(one): saved.checksum(one.tensor.name, one.tensor.dtype, one.region) for one in saved.layout.placements
    }
    with run_lock(folder):
        yield LiveRun(folder, WeightsRecord(VERSION, (), "memory", "shared memory", checksums=sums))


@pytest.fixture
def serve():
    """``async with serve(engine, ...) as urls``."""

    @asynccontextmanager
    async def served(*engines) -> AsyncIterator[list[str]]:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            urls = []
            for engine in engines:
                bound = bind("127.0.0.1", 0, EngineError, "engine")
                server = uvicorn.Server(server_config(engine.app))
                tasks.start_soon(partial(server.serve, sockets=[bound]))
                stack.callback(setattr, server, "should_exit", True)
                urls.append(url_of(bound))
            yield urls

    return served
