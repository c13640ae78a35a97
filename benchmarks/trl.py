"""Samples per second of whole training loops: miles against TRL's GRPOTrainer."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.report import Report, Value
from benchmarks.step_clock import FILE
from benchmarks.training import read_metrics, train
from benchmarks.trl_environment import SIDE, trl_python
from benchmarks.trl_tasks import MULTI_TURN, SINGLE_TURN, Task, Work, without_stop_token
from miles_core.errors import MilesError

MILES, OVERLAPPED, TRL = "miles", "miles, overlapped", "TRL"
STALENESS = {MILES: 0, OVERLAPPED: 1}
LAST = 1  # the last step of miles saves a checkpoint, which TRL does not


@dataclass(frozen=True)
class Pace:
    """One run: samples per second of its timed steps, and the generated tokens per sample in them."""

    samples_per_s: float
    tokens: float


def run(
    *,
    groups: int = 16,
    group_size: int = 16,
    steps: int = 12,
    skipped: int = 4,
    repeats: int = 5,
    new_tokens: int = 64,
    epochs: int = 1,
    mini_batches: int = 1,
    threads: int = 1,
    old_logprobs: str = "rollout",
    engines: int = 1,
) -> Report:
    """Samples per second of whole training loops: miles against TRL's GRPOTrainer.

    Generation, reward, training step and weight update together, on the quickstart's model after its warm-up. Two
    tasks: a single turn of a fixed number of tokens, and the quickstart's look-up with a tool, in TRL by
    `environment_factory`. Miles runs as `miles train` does: trainer, engine and router in processes of their own,
    with sessions, routing replay and weight publishing. TRL runs in its own environment, which the first call makes.
    Runs take turns; a ratio compares two runs of the same round. Miles is timed twice: synchronous, as TRL is, and with
    `rollout.max_staleness = 1`, where the next step is generated while this one is trained.

    Parameters
    ----------
    groups
        Prompts of a step.
    group_size
        Samples per prompt.
    steps
        Steps that are timed in each run.
    skipped
        Steps before them, in which either side still warms up.
    repeats
        Rounds of runs for each task.
    new_tokens
        Tokens of the single turn.
    epochs
        Passes over a step's samples (TRL: `num_iterations`).
    mini_batches
        Optimizer steps per pass (TRL: `steps_per_generation`).
    threads
        torch threads, of TRL and of each process of miles that computes.
    engines
        Engines of miles behind its router; they generate at the same time.
    old_logprobs
        Of miles: `rollout`, or `proximal`, which costs a forward pass that TRL spares with one optimizer step.
    """
    steps_of_a_run = skipped + steps + LAST
    work = Work(groups, group_size, steps_of_a_run, epochs, mini_batches, threads, old_logprobs, engines)
    with tempfile.TemporaryDirectory(prefix="miles-trl-") as folder:
        rows = _compare(Path(folder), work, skipped, repeats, new_tokens)
    return Report(
        "trl",
        rows,
        {f"ratio_{row['task']}, {row['side']}": row["ratio_median"] for row in rows if row["side"] != TRL},
        (
            f"{groups} x {group_size} samples a step, {steps} timed steps a run after {skipped}, {repeats} rounds.",
            f"{epochs * mini_batches} optimizer steps a step, {threads} torch threads on either side.",
            f"{engines} engines of miles.",
            "ratio: samples per second over TRL's in the same round; above 1 miles is faster.",
            "overlapped: max_staleness = 1, so the next step is generated while this one is trained.",
            "tokens: generated tokens per sample, mean over the timed steps of all runs.",
        ),
    )


def _compare(folder: Path, work: Work, skipped: int, repeats: int, new_tokens: int) -> list[dict[str, Value]]:
    python = trl_python()
    train(folder / "start", "run.steps=1")
    start = folder / "start" / "checkpoints" / "step-0"
    tasks = (
        Task(SINGLE_TURN, without_stop_token(start, folder / "endless"), new_tokens),
        Task(MULTI_TURN, start, 6),
    )
    rows: list[dict[str, Value]] = []
    for task in tasks:
        sides: dict[str, list[Pace]] = {MILES: [], OVERLAPPED: [], TRL: []}
        for number in range(repeats):
            for side in sides if number % 2 == 0 else reversed(sides):
                run_dir = folder / f"{task.max_new_tokens}-{number}-{STALENESS.get(side, side)}"
                if side == TRL:
                    steps = _trl(python, run_dir, task, work)
                else:
                    steps = _miles(run_dir, task, work, STALENESS[side])
                sides[side].append(_timed(steps, work, skipped))
        rows += _rows(task, sides)
    return rows


@dataclass(frozen=True)
class _Steps:
    """When each step of a run ended, and its mean generated tokens per sample."""

    ends: list[float]
    tokens: list[float]


def _miles(run_dir: Path, task: Task, work: Work, max_staleness: int) -> _Steps:
    config = run_dir.with_suffix(".toml")
    config.write_text(task.miles_config(work, max_staleness), "utf-8")
    train(run_dir, config=config)
    ends = [float(line) for line in (run_dir / FILE).read_text("utf-8").splitlines()]
    metrics = read_metrics(run_dir)
    if not task.multi_turn:
        _check_length(MILES, task, [row["rollout/response_length_max"] for row in metrics])
    return _Steps(ends, [row["rollout/response_length_mean"] for row in metrics])


def _trl(python: Path, run_dir: Path, task: Task, work: Work) -> _Steps:
    run_dir.mkdir()
    settings, result, log = (run_dir / name for name in ("settings.json", "result.json", "log.txt"))
    settings.write_text(json.dumps(task.trl_settings(work, run_dir)), "utf-8")
    quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    with log.open("wb") as sink:
        argv = [str(python), str(SIDE / "train.py"), str(settings), str(result)]
        done = subprocess.run(argv, stdout=sink, stderr=sink, env={**os.environ, **quiet})
    if done.returncode:
        tail = log.read_text("utf-8", errors="replace")[-2000:]
        raise MilesError(f"TRL ended with exit code {done.returncode}:\n{tail}")
    answer = json.loads(result.read_text("utf-8"))
    if not task.multi_turn:
        _check_length(TRL, task, [row["min_length"] for row in answer["steps"]])
    return _Steps(answer["ends"], [row["mean_length"] for row in answer["steps"]])


def _check_length(side: str, task: Task, lengths: list[float]) -> None:
    if set(lengths) != {float(task.max_new_tokens)}:
        raise MilesError(f"{side} must generate {task.max_new_tokens} tokens per sample; got {sorted(set(lengths))}")


def _timed(steps: _Steps, work: Work, skipped: int) -> Pace:
    first, last = skipped - 1, work.steps - LAST - 1
    seconds = steps.ends[last] - steps.ends[first]
    return Pace(work.samples * (last - first) / seconds, fmean(steps.tokens[skipped : work.steps - LAST]))


def _rows(task: Task, sides: dict[str, list[Pace]]) -> list[dict[str, Value]]:
    rows: list[dict[str, Value]] = []
    for side, paces in sides.items():
        rates = [pace.samples_per_s for pace in paces]
        ratios = [rate / theirs.samples_per_s for rate, theirs in zip(rates, sides[TRL], strict=True)]
        rows.append(
            {
                "task": task.name,
                "side": side,
                "min_samples_per_s": min(rates),
                "median_samples_per_s": median(rates),
                "max_samples_per_s": max(rates),
                "tokens": fmean(pace.tokens for pace in paces),
                "ratio_min": min(ratios),
                "ratio_median": median(ratios),
                "ratio_max": max(ratios),
            }
        )
    return rows
