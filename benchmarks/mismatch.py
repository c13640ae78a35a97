"""How far a trainer's logprobs and routes are from those of an engine, with and without replay."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from benchmarks import serving
from benchmarks.load import client
from miles_core.app.planes import build_filters, build_runner, build_tasks, fill_settings, load_tokenizer
from miles_core.app.r3_report import replay_figures
from miles_core.engine.client import HttpEngineClient
from miles_core.kinds.train_backends import ModelSource
from miles_core.rollout.scheduler import RolloutScheduler
from miles_core.train.batching import TrainStep, collect

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.rollout.step import StepRollout
    from miles_core.train.torch_backend import TorchBackend
    from miles_core.types import Sample, StepBatch

Figures: TypeAlias = "dict[str, float]"


async def rollout(wiring: Wiring, checkpoint: Path, dtype: str) -> StepRollout:
    """One step of episodes, through the code that training uses."""
    model = wiring.model
    log = checkpoint.parent / f"engine-{dtype}.log"
    async with serving.engine(checkpoint, dtype=dtype, log=log) as url, client() as http:
        engine = HttpEngineClient(
            url, http, vocab_size=model.vocab_size, context_length=model.context_length, routing=model.routing
        )
        tokenizer = load_tokenizer(wiring)
        tasks = build_tasks(wiring, wiring.config.data, tokenizer, epochs=1)
        runner = build_runner(wiring, engine, tokenizer)
        scheduler = RolloutScheduler(tasks, runner, build_filters(wiring, tokenizer), fill_settings(wiring))
        generated = await scheduler.step(0, 0)
        assert generated is not None, "the quickstart has tasks"
        return generated


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
    figures = replay_figures(wiring, backend, samples, batch, replay=replay)
    return {
        "used_differ_%": 100 * fmean(figures.used),
        "own_differ_%": 100 * fmean(figures.own),
        "max_abs_diff": figures.max_abs_diff,
        "mean_abs_diff": figures.mean_abs_diff,
        "kl": figures.kl,
    }
