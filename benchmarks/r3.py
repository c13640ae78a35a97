"""Routing replay, demonstrated: a bfloat16 engine samples, a float32 trainer recomputes, with and without replay."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import anyio
import torch
from cyclopts import Parameter

from benchmarks.mismatch import compare, rollout
from benchmarks.report import Report, Value
from benchmarks.training import CONFIG, train
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.mismatch import Figures

DTYPES = ("bfloat16", "float32")
QUANTITIES = ("max_abs_diff", "mean_abs_diff", "kl")
NOTES = (
    "used differ: share of (token, layer) whose experts are not the rollout's.",
    "own differ: share of (token, layer) where the trainer's own top-k is not, whatever is used.",
    "abs diff: |trainer - rollout logprob| of trained tokens; kl: KL(rollout, trainer), k3 estimator, in nats.",
    "all: the largest of the maxima, the mean of the rest.",
    "Yardstick: the same tokens without replay. The trainer is float32 in every row.",
)


def run(
    *,
    steps: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())] = (0, 5, 10, 15, 20),
    groups: int = 16,
    seed: int = 0,
) -> Report:
    """Routing replay: trainer against rollout logprobs with and without it.

    Trains the quickstart for a moment, serves its checkpoints in bfloat16 and, as control, in float32, plays two-turn
    episodes at temperature 1, and computes the logprobs of the trained tokens with a float32 trainer. One flipped
    route can move a token's logprob by nats or by nothing, so several checkpoints are looked at.

    Parameters
    ----------
    steps
        Which checkpoints: those after so many training steps; 0 is the model after its warm-up.
    groups
        Groups of 16 trajectories from each engine.
    seed
        Seed of weights, tasks and sampling.
    """
    if not steps or min(steps) < 0:
        raise MilesError(f"steps must be 0 or more; got {steps}", remedy="Give some, such as --steps 0 10 20.")
    torch.set_num_threads(1)
    figures: dict[tuple[str, str], list[Figures]] = {}
    rows: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory(prefix="miles-r3-") as folder:
        for step, checkpoint in _checkpoints(Path(folder) / "run", steps, seed):
            settings = [f"model.path={checkpoint}", "model.init=pretrained", f"rollout.groups_per_step={groups}"]
            wiring = wire(load_config(CONFIG, [*settings, f"run.seed={seed}"]), Path(folder))
            for dtype in DTYPES:
                pair = compare(wiring, anyio.run(rollout, wiring, checkpoint, dtype))
                for replay, row in zip(("off", "on"), pair, strict=True):
                    figures.setdefault((dtype, replay), []).append(row)
                    rows.append({"step": str(step), "engine": dtype, "replay": replay, **row})
    for dtype in DTYPES:
        off, on = _pooled(figures[dtype, "off"]), _pooled(figures[dtype, "on"])
        ratio: dict[str, Value] = {name: off[name] / on[name] if name in QUANTITIES else None for name in off}
        for replay, pooled in (("off", off), ("on", on), ("off/on", ratio)):
            rows.append({"step": "all", "engine": dtype, "replay": replay, **pooled})
    return Report("r3", rows, notes=NOTES)


def _checkpoints(run_dir: Path, steps: tuple[int, ...], seed: int) -> Iterator[tuple[int, Path]]:
    # a constant rate, so that a checkpoint does not depend on which ones follow it
    settings = [f"run.steps={max(*steps, 1)}", "optimizer.decay=constant"]
    settings += [f"checkpoint.every={math.gcd(*steps) or 1}", "checkpoint.keep=0"]
    train(run_dir, f"run.seed={seed}", *settings)
    for step in steps:
        yield step, run_dir / "checkpoints" / f"step-{step}"


def _pooled(figures: list[Figures]) -> Figures:
    """All checkpoints together."""
    return {
        name: max(row[name] for row in figures) if name.startswith("max") else fmean(row[name] for row in figures)
        for name in figures[0]
    }
