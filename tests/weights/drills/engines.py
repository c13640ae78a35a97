"""Real engines in processes of their own, a trainer in the test's, and a publisher between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import psutil
import torch
from anyio.lowlevel import checkpoint

from miles_core.weights.publish import Publisher, PublishResult
from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_core.weights.source import WeightSource

HERE = Path(__file__).parent
TRANSPORT = "drill_transport:Drill"
BUCKET_BYTES = 1 << 17


@dataclass(eq=False)
class Engine:
    """One served model; ``name`` is what files of drills begin with."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def file(self, what: str) -> Path:
        return self.folder / f"{self.name}.{what}"

    async def reached(self, point: str) -> None:
        """Wait until it is held at a point."""
        with anyio.fail_after(60):
            while not self.file(f"{point}.reached").exists():
                assert self.process.poll() is None, self.log
                await anyio.sleep(0.005)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)
        stopped = number == signal.SIGSTOP
        while stopped and psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def start_engine(name: str, model: Path, folder: Path, *options: str) -> Engine:
    """Begin to start one; :func:`ready` waits for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "miles_core.cli", "serve", "engine", "--model-path", str(model), "--port"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(port), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "DRILL_FOLDER": str(folder), "DRILL_NAME": name},
        )
    return Engine(name, f"http://127.0.0.1:{port}", process, folder)


async def ready(engines: Sequence[Engine], http: aiohttp.ClientSession) -> None:
    with anyio.fail_after(90):
        for engine in engines:
            while not await answers(engine, http):
                assert engine.process.poll() is None, engine.log
                await anyio.sleep(0.05)


async def answers(engine: Engine, http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(f"{engine.url}/model_info", timeout=aiohttp.ClientTimeout(total=2)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, OSError):
        return False


class Trainer:
    """The trainer's end; :meth:`learn` puts the weights of a version into its model."""

    def __init__(self, facts: Any, models: Callable[[int], torch.nn.Module], transport: Any) -> None:
        self._models = models
        self._tensors: Mapping[str, torch.Tensor] = models(0).state_dict()
        self._source = WeightSource(facts.layout(self._tensors), lambda: self._tensors, lambda _: transport)

    def learn(self, version: int) -> None:
        self._tensors = self._models(version).state_dict()

    async def layout(self) -> Any:
        return self._source.layout

    async def open_update(self, transport: str, opening: Any) -> None:
        self._source.open(transport, opening)

    async def stage(self, bucket: Any) -> Any:
        return await anyio.to_thread.run_sync(self._source.stage, bucket)

    async def release(self, delivery: Mapping[str, Any]) -> None:
        self._source.release(delivery)

    async def transport_path(self) -> str:
        return ""


class OneWay:
    """The choice where there is none."""

    def __init__(self, updates: ReceiverUpdates) -> None:
        self._updates = updates

    async def choose(self, engines: Any, source: Any) -> ReceiverUpdates:
        await checkpoint()
        return self._updates

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        pass

    def failed(self, transport: str, reason: str) -> bool:
        return False


@dataclass(eq=False)
class Urls:
    """The set of engines that a publisher updates."""

    urls: list[str]


@dataclass(eq=False)
class Rig:
    """Engines, trainer and publisher of one drill; ``committed`` are the versions that an update committed."""

    engines: list[Engine]
    trainer: Trainer
    http: aiohttp.ClientSession
    facts: Any
    models: Callable[[int], torch.nn.Module]
    committed: set[int] = field(default_factory=lambda: {0})
    urls: dict[str, str] = field(default_factory=dict)

    def url(self, engine: Engine) -> str:
        """Where the publisher reaches an engine, perhaps by a proxy."""
        return self.urls.get(engine.name, engine.url)

    async def publish(
        self,
        version: int,
        engines: Sequence[Engine] | None = None,
        *,
        pause_mode: Any = "in_place",
        timeout: float = 20.0,
        patience: float = 1.0,
    ) -> PublishResult:
        """Commit a version, from then on one that replies may name."""
        self.trainer.learn(version)
        chosen = [self.url(engine) for engine in (self.engines if engines is None else engines)]
        publisher = Publisher(
            Urls(chosen),
            self.trainer,
            self.http,
            bucket_bytes=BUCKET_BYTES,
            timeout=timeout,
            patience=patience,
            pause_mode=pause_mode,
            choice=OneWay(ReceiverUpdates(TRANSPORT, self.facts.layout_of, pause_mode)),
        )
        self.committed.add(version)  # an engine that has committed may reply before this call returns
        try:
            result = await publisher.publish(version)
        except Exception:
            self.committed.discard(version)
            raise
        return result

    async def while_publishing(self, version: int, act: Callable[[], Awaitable[None]], **options: Any) -> PublishResult:
        """An update, and what happens to it meanwhile."""
        results: list[PublishResult] = []

        async def publish() -> None:
            results.append(await self.publish(version, **options))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await act()
        return results[0]
