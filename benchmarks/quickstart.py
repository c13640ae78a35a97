"""Whether and how fast the quickstart learns, seed by seed."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

from cyclopts import Parameter

from benchmarks.report import Report, Value
from benchmarks.training import read_metrics, train
from miles_core.errors import MilesError

STARTS_BELOW, ENDS_ABOVE = 0.35, 0.9
LAST = 10


def run(
    *,
    seeds: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())] = (0, 1, 2, 3, 4),
    steps: int | None = None,
    max_staleness: int = 0,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
) -> Report:
    """Does the quickstart learn, on several seeds, and how fast?

    A seed passes if its first reward is below 0.35 and the mean of its last ten steps is above 0.9. One run follows
    another.

    Parameters
    ----------
    seeds
        Seeds to run, such as `--seeds 0 1 2`.
    steps
        Training steps; default: the config file's.
    max_staleness
        Policy versions that a trained token may lag; above 0, generation and training overlap.
    overrides
        Another key of the config for all runs, such as `--set optimizer.learning_rate=2e-3`; may be repeated.
    """
    if not seeds:
        raise MilesError("no seed to run", remedy="Give at least one, such as --seeds 0.")
    length = () if steps is None else (f"run.steps={steps}",)
    settings = (f"rollout.max_staleness={max_staleness}", *length, *overrides)
    with tempfile.TemporaryDirectory(prefix="miles-quickstart-") as folder:
        rows = [_row(Path(folder) / f"seed-{seed}", seed, settings) for seed in seeds]
    times = [float(row["training_s"] or 0) for row in rows]
    return Report(
        "quickstart",
        rows,
        {
            "passed": sum(bool(row["passed"]) for row in rows),
            "of": len(rows),
            "min_training_s": min(times),
            "median_training_s": median(times),
            "max_training_s": max(times),
        },
        (
            f"Passed: first reward below {STARTS_BELOW}, mean of the last {LAST} steps above {ENDS_ABOVE}.",
            "training: all steps, by the run's own metrics; the rest of total is set-up: processes, warm-up, step-0.",
        ),
    )


def _row(run_dir: Path, seed: int, settings: tuple[str, ...]) -> dict[str, Value]:
    started = time.perf_counter()
    ended = "in full"
    try:
        train(run_dir, f"run.seed={seed}", *settings)
    except MilesError as error:
        if not read_metrics(run_dir):
            raise  # it never trained; once it did, one seed's failure is a result, not the end of the others
        ended = "failed"
        sys.stderr.write(f"seed {seed}: {error}\n")
    total = time.perf_counter() - started
    metrics = read_metrics(run_dir)
    rewards = [row["rollout/reward"] for row in metrics if "rollout/reward" in row]
    first, last = rewards[0], fmean(rewards[-LAST:])
    phases = {name: sum(row.get(f"perf/phase/{name}", 0.0) for row in metrics) for name in ("rollout", "train", "sync")}
    return {
        "seed": seed,
        "steps": len(metrics),
        "training_s": sum(row["perf/step_seconds"] for row in metrics),
        **{f"{name}_s": seconds for name, seconds in phases.items()},
        "total_s": total,
        "first_reward": first,
        f"last_{LAST}_mean": last,
        "ended": ended,
        "passed": ended != "failed" and first < STARTS_BELOW and last > ENDS_ABOVE,
    }
