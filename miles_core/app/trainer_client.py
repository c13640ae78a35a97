"""The driver's handle on the trainer process."""

from __future__ import annotations

import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from miles_core.app.processes import Child, child
from miles_core.app.rpc import RemoteCaller
from miles_core.errors import TrainError
from miles_core.kinds.train_backends import OptimizerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.config.schema import OptimizerTable
    from miles_core.train.batching import TrainStep
    from miles_core.types import Bucket, Layout, Opening, Sample


class TrainerClient:
    """Typed calls into :class:`miles_core.app.trainer.TrainerService`."""

    def __init__(self, remote: RemoteCaller, process: Child) -> None:
        self._remote = remote
        self.process = process

    async def begin_supervised(self, settings: OptimizerSettings) -> None:
        """Start the supervised stage."""
        await self._remote.call("begin_supervised", settings)

    async def supervised_step(self, samples: Sequence[Sample], learning_rate: float) -> dict[str, float]:
        """One step of the supervised stage."""
        metrics: dict[str, float] = await self._remote.call("supervised_step", samples, learning_rate)
        return metrics

    async def begin(
        self, settings: OptimizerSettings, reference: Path | None = None, resume_from: Path | None = None
    ) -> None:
        """Start the reinforcement stage, or go on with it from a checkpoint."""
        await self._remote.call("begin", settings, reference, resume_from)

    async def train_step(self, step: TrainStep, dump_to: Path | None = None) -> dict[str, float]:
        """Train on one step; returns metrics."""
        metrics: dict[str, float] = await self._remote.call("train_step", step, dump_to)
        return metrics

    async def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Logprobs of the samples' tokens by the present weights, ``[T]`` each, computed as a step's proximal ones."""
        logprobs: list[NDArray[np.float32]] = await self._remote.call("proximal_logprobs", samples)
        return logprobs

    async def layout(self) -> Layout:
        """Where the trained model keeps its checkpoint tensors."""
        layout: Layout = await self._remote.call("layout")
        return layout

    async def open_update(self, transport: str, opening: Opening) -> None:
        """Begin an update whose buckets go by ``transport``."""
        await self._remote.call("open_update", transport, opening)

    async def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Offer a bucket to the engines; its delivery, and the checksum of each box."""
        staged: tuple[Mapping[str, Any], tuple[str, ...]] = await self._remote.call("stage", bucket)
        return staged

    async def release(self, delivery: Mapping[str, Any]) -> None:
        """Free a delivery."""
        await self._remote.call("release", delivery)

    async def transport_path(self) -> str:
        """Which way the bytes of the last update took, in words."""
        path: str = await self._remote.call("transport_path")
        return path

    async def save(self, path: Path, files: Mapping[str, bytes], *, keep: int) -> None:
        """Begin a checkpoint of the present state; it is written while training goes on."""
        await self._remote.call("save", path, files, keep)

    async def check_save(self) -> bool:
        """Whether a save is being written; raises what one failed with."""
        writing: bool = await self._remote.call("check_save")
        return writing

    async def wait_save(self) -> None:
        """Wait until the last save is written."""
        await self._remote.call("wait_save")


def optimizer_settings(table: OptimizerTable) -> OptimizerSettings:
    """What the trainer begins the reinforcement stage with."""
    return OptimizerSettings(table.learning_rate, table.betas, table.eps, table.weight_decay, table.max_grad_norm)


@asynccontextmanager
async def trainer_process(
    config_path: Path, run_dir: Path, *, start_timeout: float, log_dir: Path
) -> AsyncIterator[TrainerClient]:
    """Start the trainer and wait until its model is built.

    Raises:
        TrainError: if it cannot start.
    """
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "miles_core.app.trainer", str(config_path), str(run_dir), str(theirs.fileno())]
    remote = RemoteCaller(ours)
    try:
        async with child(
            "trainer",
            argv,
            log=log_dir / "trainer.log",
            error=TrainError,
            start_timeout=start_timeout,
            pass_fds=(theirs.fileno(),),
        ) as process:
            theirs.close()
            yield TrainerClient(remote, process)
    finally:
        theirs.close()
        remote.close()
