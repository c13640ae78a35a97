"""How far a trainer's logprobs and routes are from those of an engine, with and without replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from benchmarks import serving
from benchmarks.load import client
from benchmarks.routes import RouteCount
from miles_core.app.planes import build_scheduler
from miles_core.engine.client import HttpEngineClient
from miles_core.kinds.train_backends import ModelSource
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.train.batching import TrainStep, collect
from miles_core.train.metrics import correction_metrics
from miles_core.train.packing import micro_batches, scatter_rows

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.rollout.scheduler import StepRollout
    from miles_core.train.torch_backend import TorchBackend
    from miles_core.types import Sample, StepBatch

Figures: TypeAlias = "dict[str, float]"
MAX_TOKENS = 16384


async def rollout(wiring: Wiring, checkpoint: Path, dtype: str) -> StepRollout:
    """One step of episodes, through the code that training uses."""
    model = wiring.model
    log = checkpoint.parent / f"engine-{dtype}.log"
    async with serving.engine(checkpoint, dtype=dtype, log=log) as url, client() as http:
        engine = HttpEngineClient(
            url, http, vocab_size=model.vocab_size, context_length=model.context_length, routing=model.routing
        )
        source = wiring.build("data_sources", wiring.config.data)
        return await build_scheduler(wiring, source, engine, ChatTokenizer.load(model.path)).step(0)


def compare(wiring: Wiring, generated: StepRollout) -> tuple[Figures, Figures]:
    """The trainer's figures without and with replay, on all trajectories: filters are for learning, not for this."""
    model = wiring.model
    source = ModelSource(path=str(model.path), bridge=model.bridge, routing=model.routing)
    backend = wiring.build("train_backends", wiring.config.train, model_source=source)
    samples, batch = collect(TrainStep(0, generated.groups, generated.generated_tokens, 0.0))
    return _figures(wiring, backend, samples, batch, replay=False), _figures(
        wiring, backend, samples, batch, replay=True
    )


def _figures(
    wiring: Wiring, backend: TorchBackend, samples: list[Sample], batch: StepBatch, *, replay: bool
) -> Figures:
    proximal = np.zeros(len(batch.tokens), np.float32)
    with RouteCount(wiring.model.bridge.replay_points(backend.model)) as count:
        for rows in micro_batches(batch.lengths.tolist(), range(len(samples)), MAX_TOKENS):
            micro = [samples[row] for row in rows]
            outputs = backend.forward(micro, replay=replay)
            count.add(micro)
            scatter_rows(proximal, batch.cu_seqlens, rows, outputs.logprobs.numpy())
    metrics = correction_metrics(replace(batch, proximal_logprobs=proximal))
    return {
        "used_differ_%": 100 * count.used_fraction,
        "own_differ_%": 100 * count.own_fraction,
        "max_abs_diff": metrics["train/rollout_logprob_abs_diff_max"],
        "mean_abs_diff": metrics["train/rollout_logprob_abs_diff"],
        "kl": metrics["train/rollout_kl"],
    }
