"""What routing replay (R3) does to one step of a run: routes and logprobs with and without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.app.dumps import CONFIG, dump_folder, read_dump
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.config.schema import TrainTable
from miles_core.errors import ConfigError
from miles_core.kinds.train_backends import ModelSource
from miles_core.train.batching import collect
from miles_core.train.dump import MODEL_FOLDER
from miles_core.train.metrics import correction_metrics
from miles_core.train.packing import micro_batches, scatter_rows
from miles_core.train.route_count import RouteCount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.kinds.train_backends import TrainBackend
    from miles_core.types import Sample, StepBatch

_LAYOUTS = ("packing", "deterministic")


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """One forward pass over a step's samples, against what the rollout did.

    ``own`` is, per MoE layer, the share of tokens whose top-k by the trainer's own router is another set than the
    rollout's; ``used`` that of tokens whose experts were given another set. Logprob differences are over trained
    tokens, in nats; ``kl`` is KL(rollout, trainer) by the k3 estimator (Schulman 2020).
    """

    own: tuple[float, ...]
    used: tuple[float, ...]
    mean_abs_diff: float
    max_abs_diff: float
    kl: float


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A step with and without replay."""

    step: int
    samples: int
    trained_tokens: int
    layer_ids: tuple[int, ...]
    num_experts: int
    top_k: int
    without: ReplayFigures
    replayed: ReplayFigures


def report_step(
    run_dir: Path, step: int | None = None, *, dtype: str | None = None, perturb: float = 0.0, seed: int = 0
) -> ReplayReport:
    """Compare a dumped step, by default the newest dump, with the trainer's model as it was before the step.

    ``dtype`` is the type that the trainer computes in, by default the run's. ``perturb`` first adds noise to every
    weight, with that share of the weight's own standard deviation.

    Raises:
        ConfigError: if there is no dump of that step, or the model has no routing.
    """
    step = step or _newest(run_dir)
    folder = dump_folder(run_dir, step)
    _, train_step = read_dump(folder)
    wiring = wire(load_config(folder / CONFIG), run_dir)
    routing = wiring.model.routing
    if routing is None:
        raise ConfigError(
            f"the model in {wiring.model.path} is dense: it has no routing to replay",
            remedy="Name a run of a mixture-of-experts model.",
        )
    samples, batch = collect(train_step)
    if not samples or any(sample.routing is None for sample in samples):
        raise ConfigError(
            f"step {step} holds no sample with a routing trace",
            remedy="Dump a step that trains, of a run with train.replay_routing = true.",
        )
    backend = _backend(wiring, folder / MODEL_FOLDER, dtype or wiring.config.model.dtype)
    if perturb:
        _perturb(backend, perturb, seed)
    without, replayed = (replay_figures(wiring, backend, samples, batch, replay=on) for on in (False, True))
    return ReplayReport(
        step,
        len(samples),
        int(batch.loss_mask.sum()),
        routing.layer_ids,
        routing.num_experts,
        routing.top_k,
        without,
        replayed,
    )


def replay_figures(
    wiring: Wiring, backend: Any, samples: Sequence[Sample], batch: StepBatch, *, replay: bool
) -> ReplayFigures:
    """One forward pass over ``samples``, whose arrays are ``batch``, on the torch backend."""
    proximal = np.zeros(len(batch.tokens), np.float32)
    limit = wiring.config.train.max_tokens_per_micro_batch
    with RouteCount(wiring.model.bridge.replay_points(backend.model)) as count:
        for rows in micro_batches(batch.lengths.tolist(), range(len(samples)), limit):
            micro = [samples[row] for row in rows]
            outputs = backend.forward(micro, replay=replay)
            count.add(micro)
            scatter_rows(proximal, batch.cu_seqlens, rows, outputs.logprobs.numpy())
    metrics = correction_metrics(replace(batch, proximal_logprobs=proximal))
    return ReplayFigures(
        own=tuple((count.own / count.compared).tolist()),
        used=tuple((count.used / count.compared).tolist()),
        mean_abs_diff=metrics["train/rollout_logprob_abs_diff"],
        max_abs_diff=metrics["train/rollout_logprob_abs_diff_max"],
        kl=metrics["train/rollout_kl"],
    )


def _newest(run_dir: Path) -> int:
    """The last dumped step."""
    found = [path.name.removeprefix("step-") for path in dump_folder(run_dir, 0).parent.glob("step-*")]
    steps = [int(number) for number in found if number.isdigit()]
    if not steps:
        raise ConfigError(
            f"the run {run_dir} has no dumps",
            remedy="Train with --dump N, where N is the step as metrics.jsonl counts it.",
        )
    return max(steps)


def _backend(wiring: Wiring, model: Path, dtype: str) -> TrainBackend:
    """The run's train backend, padded and with the weights before the step."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = wiring.config
    options = {key: value for key, value in config.train.model_dump().items() if key not in _LAYOUTS}
    source = ModelSource(path=str(model), bridge=wiring.model.bridge, routing=wiring.model.routing, dtype=dtype)
    backend: TrainBackend = wiring.build("train_backends", TrainTable.model_validate(options), model_source=source)
    if not hasattr(backend, "model"):
        raise ConfigError(
            f"the train backend {config.train.use} does not show its model to this command",
            remedy="Use it on a run of the torch backend.",
        )
    return backend


def _perturb(backend: TrainBackend, share: float, seed: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    # tied weights stand under several names
    distinct = {parameter.data_ptr(): parameter for parameter in backend.parameters().values()}
    with torch.no_grad():
        for parameter in distinct.values():
            if parameter.is_floating_point() and parameter.numel() > 1:
                noise = torch.randn(parameter.shape, generator=generator) * (parameter.float().std().item() * share)
                parameter.add_(noise.to(parameter))
