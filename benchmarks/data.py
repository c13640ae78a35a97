"""Start-up, speed and memory of the ``jsonl`` source on a file larger than it may hold in memory."""

from __future__ import annotations

import json
import multiprocessing
import re
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Report
from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Value

GOAL_START_SECONDS = 2.0
GOAL_PEAK_MB = 300.0
CASE = "jsonl, shuffled"
FIRST = 16
ROW_BYTES = 1000


def run(*, gigabytes: float = 2.0, rows: int = 20_000) -> Report:
    """Start-up, speed and peak memory of a large JSONL file, shuffled.

    Each case runs in a process of its own. The goals: the first 16 tasks within 2 s, and less than 300 MB.

    Parameters
    ----------
    gigabytes
        Size of the file; it is written to a temporary folder first, which is not measured.
    rows
        Tasks to take.
    """
    if not Path("/proc/self/status").exists():
        raise MilesError("peak memory is read from /proc", remedy="Run this on Linux.")
    with tempfile.TemporaryDirectory(prefix="miles-data-") as folder:
        path = Path(folder) / "tasks.jsonl"
        _write(path, int(gigabytes * 1e9))
        cases = {
            "read the same bytes": _alone(_read_raw, path, rows),
            "read and json.loads": _alone(_read_json, path, rows),
            CASE: _alone(_take, path, rows),
        }
    start, peak, seconds = (float(cases[CASE][key] or 0) for key in ("start_s", "peak_mb", "take_s"))
    ratios = [seconds / float(case["take_s"] or 1) for case in cases.values()]
    return Report(
        "data",
        [{"case": name, **case} for name, case in cases.items()],
        {
            "tasks_per_s": rows / seconds,
            "ratio_to_read": ratios[0],
            "ratio_to_json": ratios[1],
            "within_goal": start < GOAL_START_SECONDS and peak < GOAL_PEAK_MB,
        },
        (
            f"{gigabytes:g} GB of rows of {ROW_BYTES} bytes, just written, so in the page cache. MB are 10^6 bytes.",
            f"start_s: make the source and take {FIRST} tasks. take_s: take {rows} tasks, or read as many bytes.",
            f"Goals: start within {GOAL_START_SECONDS:g} s, peak below {GOAL_PEAK_MB:g} MB, Python and numpy included.",
        ),
    )


def _write(path: Path, size: int) -> None:
    padding = "x" * (ROW_BYTES - len('{"prompt": "", "label": 00000000}\n'))
    rows_at_once = 10_000
    with path.open("w", encoding="ascii") as file:
        for start in range(0, size // ROW_BYTES, rows_at_once):
            numbers = range(start, start + rows_at_once)
            file.writelines(f'{{"prompt": "{padding}", "label": {number + 10_000_000}}}\n' for number in numbers)


def _alone(case: Callable[[Path, int], dict[str, Value]], path: Path, rows: int) -> dict[str, Value]:
    """Run a case in a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(case, (path, rows))


def _read_raw(path: Path, rows: int) -> dict[str, Value]:
    started = time.perf_counter()
    with path.open("rb") as file:
        left = rows * ROW_BYTES
        while left > 0 and (data := file.read(min(1 << 20, left))):
            left -= len(data)
    return {"start_s": None, "take_s": time.perf_counter() - started, "peak_mb": _peak_mb()}


def _read_json(path: Path, rows: int) -> dict[str, Value]:
    started = time.perf_counter()
    with path.open("rb") as file:
        for line in islice(file, rows):
            json.loads(line)
    return {"start_s": None, "take_s": time.perf_counter() - started, "peak_mb": _peak_mb()}


def _take(path: Path, rows: int) -> dict[str, Value]:
    from miles_core.kinds.base import PluginContext
    from miles_plugins.sources.jsonl import Jsonl, JsonlConfig

    started = time.perf_counter()
    source = Jsonl(JsonlConfig(path=path.name), PluginContext(services={"base_dir": path.parent}))
    source.take(FIRST)
    start = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(rows):
        source.take(1)
    return {"start_s": start, "take_s": time.perf_counter() - started, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    """The most memory that this process ever had resident; unlike ``ru_maxrss`` it is not inherited."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return int(found[1]) * 1024 / 1e6 if found else float("nan")
