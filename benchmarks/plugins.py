"""Discovery among many distributions, and calls of a plugin that was found."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report
from benchmarks.timing import Timings
from miles_core.api import PluginContext
from miles_core.config.schema import RewardTable
from miles_core.plugins import Hub
from miles_core.plugins.installed.policy import PluginPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

GOAL_SECONDS = 0.4
SLOW_IMPORTS = 2
BARE, LIST = "python -c pass", "miles plugins list"
PLAIN, BUILT = "its method", "its method, built by the hub"


class Score:
    """A reward model that does nothing, so that only the call is measured."""

    scope = "sample"

    def __init__(self, config: Any, context: Any) -> None:
        del config, context

    async def score(self, items: Sequence[Any]) -> list[Any]:
        return []


def run(*, distributions: int = 200, plugins: int = 100, repeats: int = 15, calls: int = 100_000) -> Report:
    """`miles plugins list` among many distributions against a bare Python, and calls of a plugin against plain ones.

    Two of the plugins take 3 s to import; listing imports none. Goals: 0.4 s more than a bare Python, in the median of
    pairs, and calls that cost what a plain method costs.

    Parameters
    ----------
    distributions
        Distributions in a temporary folder on the path.
    plugins
        How many of them offer a plugin.
    repeats
        Pairs of runs, and rounds of calls.
    calls
        Calls in a round.
    """
    with tempfile.TemporaryDirectory() as folder:
        _install(Path(folder), distributions, plugins)
        listing, differences = _measure_list(folder, repeats)
        found = len(Hub.discover(PluginPolicy(), path=[folder]).refs())
    called = asyncio.run(_measure_calls(repeats, calls))
    return Report(
        "plugins",
        [*(listing.row(case) for case in (BARE, LIST)), *(called.row(case) for case in (PLAIN, BUILT))],
        {
            "distributions": distributions,
            "plugins": found,
            "difference_median_s": median(differences),
            "difference_max_s": max(differences),
            "within_goal": median(differences) <= GOAL_SECONDS,
            "call_ns": called.median(BUILT) / calls * 1e9,
            "call_ratio": called.median(BUILT) / called.median(PLAIN),
        },
        (f"Goal: `{LIST}` within {GOAL_SECONDS} s of `{BARE}`, in the median of pairs; a call ratio of 1.",),
    )


def _install(folder: Path, distributions: int, plugins: int) -> None:
    for number in range(distributions):
        info = folder / f"bench_{number}-1.{number}.dist-info"
        info.mkdir()
        headers = f"Metadata-Version: 2.1\nName: bench-{number}\nVersion: 1.{number}\nRequires-Dist: miles-hub>=0.1\n"
        (info / "METADATA").write_text(headers + "\n" + "A long description.\n" * 500)
        kind = "miles.reward_models" if number < plugins else "console_scripts"
        (info / "entry_points.txt").write_text(f"[{kind}]\nbench_{number} = bench_{number}:f\n")
        wait = "import time\ntime.sleep(3)\n" if number < SLOW_IMPORTS else ""
        (folder / f"bench_{number}.py").write_text(f"{wait}def f(trajectory):\n    return 1.0\n")


def _measure_list(folder: str, repeats: int) -> tuple[Timings, list[float]]:
    commands = {
        BARE: [sys.executable, "-c", "pass"],
        LIST: [str(Path(sys.executable).with_name("miles")), "plugins", "list"],
    }
    timings = Timings(list(commands), BARE)
    for command in commands.values():  # once before, so that byte code and disk cache are warm for both
        _seconds(command, folder)
    pairs: list[dict[str, float]] = [{} for _ in range(repeats)]
    for index, case in enumerate(timings.rounds(repeats)):
        pairs[index // 2][case] = _seconds(commands[case], folder)
        timings.add(case, pairs[index // 2][case])
    return timings, [pair[LIST] - pair[BARE] for pair in pairs]


def _seconds(command: list[str], folder: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": folder})
    return time.perf_counter() - started


async def _measure_calls(repeats: int, calls: int) -> Timings:
    table = RewardTable(use=f"{__name__}:Score")
    methods = {
        PLAIN: Score(None, None).score,
        BUILT: Hub.discover().build("reward_models", table, PluginContext()).score,
    }
    timings = Timings(list(methods), PLAIN)
    for case in timings.rounds(repeats):
        timings.add(case, await _calls(methods[case], calls))
    return timings


async def _calls(method: Callable[[list[Any]], Coroutine[Any, Any, list[Any]]], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        await method([])
    return time.perf_counter() - started
