"""The trainer process: builds model, estimator and losses from the config, then answers the driver's calls."""

from __future__ import annotations

import logging
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.app.child import child_process, report
from miles_core.app.functions import build_correction, build_reduction
from miles_core.app.plugin_calls import calls_into
from miles_core.app.rpc import serve
from miles_core.app.trainer_hooks import TrainerHooks
from miles_core.app.transports import transport_table
from miles_core.app.wiring import Wiring, wire
from miles_core.config.load import load_config
from miles_core.kinds.hooks import TrainerHandle
from miles_core.kinds.train_backends import ModelSource
from miles_core.train.checkpoint_writer import CheckpointWriter
from miles_core.train.dump import MODEL_FOLDER, write_train_dump
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.plugin_guard import GuardedEstimator, GuardedLoss
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_core.weights.source import WeightSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.config.schema import LossTable
    from miles_core.kinds.train_backends import OptimizerSettings
    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.train.batching import TrainStep
    from miles_core.types import Bucket, Layout, Opening, Sample


class TrainerService:
    """What the driver calls, by name."""

    def __init__(self, wiring: Wiring) -> None:
        config, model = wiring.config, wiring.model
        source = ModelSource(
            path=str(model.path),
            bridge=model.bridge,
            routing=model.routing,
            dtype=config.model.dtype,
            init=config.model.init,
            seed=config.run.seed,
        )
        self._backend = wiring.build("train_backends", config.train, model_source=source)
        step_hooks = TrainerHooks(wiring.hooks, TrainerHandle(self._backend))
        step_hooks.trainer_built()
        losses = [_loss(wiring, table) for table in config.losses]
        settings = TrainerSettings(
            epochs=config.objective.epochs,
            mini_batches=config.objective.mini_batches,
            old_logprobs=config.objective.old_logprobs,
            replay_routing=config.train.replay_routing,
            max_tokens_per_micro_batch=config.train.max_tokens_per_micro_batch,
            seed=config.run.seed,
            require_on_policy=config.run.true_on_policy == "require",
        )
        made = wiring.build("advantage_estimators", config.advantage)
        estimator = GuardedEstimator(made, calls_into(wiring, "advantage_estimators", config.advantage))
        objective = Objective(losses, build_reduction(config))
        self._trainer = Trainer(self._backend, estimator, objective, settings, step_hooks, build_correction(config))
        supervised = wiring.hub.create("losses", "miles-hub/sft", None, wiring.context())
        self._supervised = Objective([WeightedLoss("sft", supervised)])
        self._calls = wiring.calls
        self._writer = CheckpointWriter()
        self._weights = WeightSource(
            model.layout(self._backend.parameters()), self._backend.parameters, partial(_transport, wiring)
        )

    def begin_supervised(self, settings: OptimizerSettings) -> None:
        """Start the supervised stage with a fresh optimizer."""
        self._backend.reset_optimizer(settings)

    def supervised_step(self, samples: Sequence[Sample], learning_rate: float) -> dict[str, float]:
        """One step of the supervised stage."""
        return self._trainer.supervised_step(samples, self._supervised, learning_rate)

    def begin(
        self, settings: OptimizerSettings, reference: Path | None = None, resume_from: Path | None = None
    ) -> None:
        """Start the reinforcement stage, or go on with it from a checkpoint.

        ``reference`` is the checkpoint of the reference model; without it, it is the present one.
        """
        self._trainer.begin(settings, reference)
        if resume_from is not None:
            self._backend.restore(resume_from)

    def train_step(self, step: TrainStep, dump_to: Path | None = None) -> dict[str, float]:
        """Train on one step; returns metrics. What it takes to compute the same again goes to ``dump_to``."""
        metrics = self._trainer.train_step(step) if dump_to is None else self._dumped_step(step, dump_to)
        return {**metrics, **self._calls.take_metrics()}

    def _dumped_step(self, step: TrainStep, dump_to: Path) -> dict[str, float]:
        self._backend.snapshot()(dump_to / MODEL_FOLDER)
        seen: dict[str, Any] = {}
        metrics = self._trainer.train_step(step, lambda batch, estimates: seen.update(batch=batch, estimates=estimates))
        write_train_dump(dump_to, seen["batch"], seen["estimates"], metrics)
        return metrics

    def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Logprobs of the samples' tokens by the present weights, ``[T]`` each, computed as a step's proximal ones."""
        return self._trainer.proximal_logprobs(samples)

    def layout(self) -> Layout:
        """Where the checkpoint tensors live."""
        return self._weights.layout

    def open_update(self, transport: str, opening: Opening) -> None:
        """Begin an update whose buckets go by ``transport``."""
        self._weights.open(transport, opening)

    def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Offer a bucket to the engines; returns its delivery and the checksum of each box."""
        return self._weights.stage(bucket)

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Free a delivery."""
        self._weights.release(delivery)

    def transport_path(self) -> str:
        """Which way the bytes of the last update took, in words."""
        return self._weights.path()

    def save(self, path: Path, files: Mapping[str, bytes], keep: int) -> None:
        """Copy the present state, and write it with ``files`` as a checkpoint while training goes on."""
        self._writer.save(path, self._backend, files, keep=keep)

    def check_save(self) -> bool:
        """Whether a save is being written; raises what one failed with."""
        return self._writer.poll()

    def wait_save(self) -> None:
        """Wait until the last save is written."""
        self._writer.wait()

    def close(self) -> None:
        """Finish a save, and release what the backend holds."""
        try:
            self._writer.wait()
        finally:
            self._weights.close()
            self._backend.close()


def _transport(wiring: Wiring, name: str) -> WeightTransport:
    """The trainer's end of a transport."""
    table = transport_table(wiring.hub, wiring.config.weights, name)
    made: WeightTransport = wiring.build("weight_transports", table)
    return made


def _loss(wiring: Wiring, table: LossTable) -> WeightedLoss:
    label = wiring.hub.resolve("losses", table.use).label
    guarded = GuardedLoss(wiring.build("losses", table), calls_into(wiring, "losses", table))
    return WeightedLoss(label, guarded, table.weight)


def main(config_path: str, run_dir: str, descriptor: str) -> None:
    """Serve the driver over the inherited socket until it hangs up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    with child_process():
        wiring = wire(load_config(Path(config_path)), Path(run_dir), "trainer")
        wiring.hooks.observe_now("miles_process_started", role="trainer", rank=0)
        service = TrainerService(wiring)
        report({"ready": True})
    try:
        serve(socket.socket(fileno=int(descriptor)), service)
    finally:
        service.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
