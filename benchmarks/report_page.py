"""``miles report`` of many episodes against JSON and gzip of the same records."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from miles_core.lib.archive import load_archive
from miles_core.telemetry.episodes import episode_files, write_episodes
from miles_core.types import (
    Message,
    Reward,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)

GOAL_SECONDS = 30.0
MODEL = Path(__file__).parents[1] / "examples" / "quickstart" / "model"
YARDSTICK, CASE = "json + gzip of the records", "miles report"
TURNS = 2


def run(*, episodes: int = 10_000, tokens: int = 200, per_step: int = 16, repeats: int = 3) -> Report:
    """Write the page of a run with many episodes, all metrics and a tokenizer; start-up of Python included.

    Parameters
    ----------
    episodes
        Episodes of the run, in steps of `per_step`.
    tokens
        Tokens of each, half of them generated, in two turns.
    per_step
        Episodes of a step, which are one file.
    repeats
        Runs of each, in turns.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        writing = _write_run(run_dir, episodes, tokens, per_step)
        yardstick_bytes = len(_json_gzip(run_dir))
        timings = Timings([YARDSTICK, CASE], YARDSTICK)
        for case in timings.rounds(repeats):
            started = time.perf_counter()
            if case == CASE:
                _report(run_dir)
            else:
                _json_gzip(run_dir)
            timings.add(case, time.perf_counter() - started)
        sizes = {YARDSTICK: yardstick_bytes, CASE: (run_dir / "report.html").stat().st_size}
        files = sum(path.stat().st_size for path in episode_files(run_dir))
    rows: list[dict[str, Value]] = [timings.row(case) | {"MB": sizes[case] / 1e6} for case in (YARDSTICK, CASE)]
    summary: dict[str, Value] = {
        "episodes": episodes,
        "within_goal": timings.fastest(CASE) <= GOAL_SECONDS,
        "episode_files_MB": files / 1e6,
        "write_one_step_median_ms": 1e3 * writing,
    }
    return Report("report_page", rows, summary, (f"Goal: 10,000 episodes within {GOAL_SECONDS:g} s.",))


def _report(run_dir: Path) -> None:
    code = "import sys; from miles_core.cli.report import report; report(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(run_dir)], check=True, stdout=subprocess.DEVNULL)


def _json_gzip(run_dir: Path) -> bytes:
    """The same records as one compressed document, arrays as lists: what the page holds at the least."""
    records = [load_archive(path.read_bytes()) for path in episode_files(run_dir)]
    return gzip.compress(json.dumps(records, default=np.ndarray.tolist).encode(), compresslevel=6)


def _write_run(run_dir: Path, episodes: int, tokens: int, per_step: int) -> float:
    """Fill a run's folder; returns the median seconds of writing one step's episodes."""
    random = np.random.default_rng(0)
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "step-0").symlink_to(MODEL)
    (run_dir / "config.toml").write_text("[run]\nname = 'benchmark'\n")
    steps = -(-episodes // per_step)
    seconds, lines = [], []
    for step in range(1, steps + 1):
        count = min(per_step, episodes - (step - 1) * per_step)
        made = [_trajectory(step, member, tokens, random) for member in range(count)]
        started = time.perf_counter()
        write_episodes(run_dir / "episodes", step, made, {made[0].id}, version=step)
        seconds.append(time.perf_counter() - started)
        lines.append(json.dumps({"step": step, **{name: float(random.random()) for name in _METRICS}}) + "\n")
    (run_dir / "metrics.jsonl").write_text("".join(lines))
    return float(np.median(seconds))


_METRICS = (
    "rollout/reward", "rollout/reward_kept", "rollout/response_length_mean", "rollout/response_length_max",
    "rollout/turns", "rollout/dropped/stale", "rollout/truncated/max_turns", "rollout/staleness_mean", "train/loss",
    "train/entropy", "train/grad_norm", "train/learning_rate", "train/rollout_logprob_abs_diff", "train/rollout_kl",
    "train/ess", "replay/mismatch_fraction", "perf/phase/rollout", "perf/phase/train", "perf/tokens_per_second",
)  # fmt: skip


def _trajectory(step: int, member: int, tokens: int, random: np.random.Generator) -> Trajectory:
    part = tokens // (2 * TURNS)
    length = 2 * TURNS * part
    mask = np.tile(np.repeat(np.array([0, 1], np.uint8), part), TURNS)
    starts = [(2 * turn + 1) * part for turn in range(TURNS)]
    name = f"s{step}-g{member}-t0"
    info: dict[str, Any] = {"key": "c", "hits": member}
    sample = Sample(
        f"t{member}", f"s{step}-g{member}", name, "policy",
        random.integers(3, 40, length).astype(np.int32), mask,
        np.where(mask == 1, -random.exponential(0.5, length), 0).astype(np.float32),
        tuple(VersionSpan(step, start, start + part) for start in starts),
        tuple(TurnRecord(start, start + part, SamplingParams(), "stop", 0.1, 0.1, info=info) for start in starts),
        Status.COMPLETED,
    )  # fmt: skip
    question = Message("user", "".join(map(chr, random.integers(97, 122, part))))
    answer = Message("assistant", "".join(map(chr, random.integers(97, 122, part))))
    messages = (question, *(answer, Message("tool", "2")) * TURNS)
    reward = Reward(float(random.random()), None, {"exact_match": 0.5})
    return Trajectory(name, Task(f"t{member}", (question,), "2"), messages, (sample,), Status.COMPLETED, reward)
