"""The trainer's ends of transports."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.api import PluginContext
from miles_plugins.transports.disk import Disk
from miles_plugins.transports.disk_delta import DiskDelta
from miles_plugins.transports.memory import Memory
from miles_plugins.transports.mooncake import Mooncake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from miles_core.api import Bucket, Opening


@dataclass(eq=False)
class TrainerEnd:
    """A transport by its name; ``deliveries`` are those of the last update."""

    name: str
    transport: Any
    deliveries: list[Mapping[str, Any]] = field(default_factory=list)

    def open(self, opening: Opening) -> None:
        self.deliveries.clear()
        if hasattr(self.transport, "open"):
            self.transport.open(opening)

    def send(self, bucket: Bucket, payload: bytes) -> Mapping[str, Any]:
        delivery: Mapping[str, Any] = self.transport.send(bucket, memoryview(bytearray(payload)))
        self.deliveries.append(delivery)
        return delivery

    def release(self, delivery: Mapping[str, Any]) -> None:
        self.transport.release(delivery)

    def close(self) -> None:
        self.transport.close()


def trainer_end(name: str, folder: Path) -> TrainerEnd:
    """With files in ``folder``, where the transport has some."""
    context = PluginContext()
    if name == "memory":
        return TrainerEnd(name, Memory({}, context))
    if name == "mooncake":
        if reason := Mooncake.unavailable():
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        return TrainerEnd(name, Mooncake(Mooncake.Config(), context))
    kind: Any = {"disk": Disk, "disk_delta": DiskDelta}[name]
    return TrainerEnd(name, kind(kind.Config(dir=str(folder)), context))


@pytest.fixture
def make_end(tmp_path: Path) -> Iterator[Callable[[str], TrainerEnd]]:
    """``make_end("memory")``; closed after the test."""
    with ExitStack() as ends:
        yield lambda name: ends.enter_context(closing(trainer_end(name, tmp_path)))
