"""``miles plugins list`` against ``python -c pass``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Report
from benchmarks.timing import Timings

GOAL_SECONDS = 0.3
YARDSTICK = "python -c pass"
CASE = "miles plugins list"


def run(*, repeats: int = 10) -> Report:
    """Start-up of `miles plugins list` against a bare Python.

    It lists from metadata and imports no plugin and no torch. The goal is to stay within 0.3 s.

    Parameters
    ----------
    repeats
        Runs of each, in turns.
    """
    commands = {
        YARDSTICK: [sys.executable, "-c", "pass"],
        CASE: [str(Path(sys.executable).with_name("miles")), "plugins", "list"],
    }
    timings = Timings(list(commands), YARDSTICK)
    for command in commands.values():  # once before, so that byte code and disk cache are warm for both
        _seconds(command)
    for case in timings.rounds(repeats):
        timings.add(case, _seconds(commands[case]))
    fastest = timings.fastest(CASE)
    return Report(
        "plugins_list",
        [timings.row(case) for case in commands],
        {
            "difference_min_s": fastest - timings.fastest(YARDSTICK),
            "difference_median_s": timings.median(CASE) - timings.median(YARDSTICK),
            "within_goal": fastest <= GOAL_SECONDS,
        },
        (f"Goal: `{CASE}` within {GOAL_SECONDS} s (its fastest run). Yardstick: `{YARDSTICK}`.",),
    )


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
