"""Peak memory of one quickstart run, summed over its processes and for each of them."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.report import Report, Value
from benchmarks.training import check, training
from miles_core.errors import MilesError

if TYPE_CHECKING:
    import subprocess

BOUND_GB = 3.0
INTERVAL = 0.2
# What is in the command line of each child, and what it is called.
ROLES = {"miles_core.app.trainer": "trainer", "serve engine": "engine", "serve router": "router"}


def run(*, steps: int = 10) -> Report:
    """Peak memory of a training run, by process.

    PSS: what processes share counts once, divided among them. Sampled every 0.2 s; the bound is 3 GB.

    Parameters
    ----------
    steps
        Training steps of the run.
    """
    with tempfile.TemporaryDirectory(prefix="miles-memory-") as folder:
        run_dir = Path(folder) / "run"
        with training(run_dir, f"run.steps={steps}") as process:
            samples = _watch(process)
        check(process, run_dir)
    if not samples:
        raise MilesError("no sample of memory was taken", remedy="PSS is read from /proc: run this on Linux.")
    highest = max(samples, key=lambda sample: sum(sample.values()))
    peak = sum(highest.values())
    names = sorted({name for sample in samples for name in sample}, key=lambda name: -highest.get(name, 0.0))
    rows: list[dict[str, Value]] = [
        {
            "process": name,
            "peak_gb": max(sample.get(name, 0.0) for sample in samples),
            "at_total_peak_gb": highest.get(name, 0.0),
        }
        for name in names
    ]
    return Report(
        "memory",
        [*rows, {"process": "total", "peak_gb": peak, "at_total_peak_gb": peak}],
        {"peak_gb": peak, "of_bound": peak / BOUND_GB, "within_bound": peak <= BOUND_GB, "samples": len(samples)},
        (f"PSS in GB (10^9 bytes), {steps} steps, a sample every {INTERVAL} s. Bound: {BOUND_GB:g} GB.",),
    )


def _watch(process: subprocess.Popen[bytes]) -> list[dict[str, float]]:
    """GB by role of process, every ``INTERVAL`` seconds until the run is over."""
    driver = psutil.Process(process.pid)
    samples: list[dict[str, float]] = []
    due = time.monotonic()
    while process.poll() is None:
        if sample := _sample(driver):
            samples.append(sample)
        due = max(due + INTERVAL, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
    return samples


def _sample(driver: psutil.Process) -> dict[str, float]:
    used: defaultdict[str, float] = defaultdict(float)
    try:
        processes = [driver, *driver.children(recursive=True)]
    except psutil.NoSuchProcess:
        return {}
    for process in processes:
        try:
            name = "driver" if process == driver else _role(process)
            used[name] += process.memory_full_info().pss / 1e9
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended between the list and the look
    return dict(used)


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return next((role for part, role in ROLES.items() if part in command), "helpers")
