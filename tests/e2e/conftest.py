"""Real runs of the quickstart, made small, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples" / "quickstart" / "config.toml"
SMALL = {
    "run.steps": 3,
    "rollout.groups_per_step": 4,
    "run.max_empty_steps": 9,
    "rollout.group_size": 6,
    "warmup.steps": 20,
    "warmup.batch_size": 32,
    "train.threads": 1,
}


@dataclass
class MilesRun:
    """A ``miles train`` process and its run folder."""

    folder: Path
    process: subprocess.Popen[str]
    output: str = ""
    children: list[psutil.Process] = field(default_factory=list)

    def wait(self, seconds: float = 110) -> int:
        self.output = self.process.communicate(timeout=seconds)[0]
        return self.process.returncode

    def wait_for(self, path: str, text: str = "", seconds: float = 90) -> Path:
        """Wait until a file of the run is not empty and holds ``text``; note the processes that it has by then."""
        deadline = time.monotonic() + seconds
        found = self.folder / path
        while not (found.exists() and found.stat().st_size and text in found.read_text()):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, f"{path} was not written"
            time.sleep(0.05)
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def child(self, word: str) -> psutil.Process:
        """The child whose command line holds a word."""
        return next(child for child in self.children if word in child.cmdline())

    def assert_nothing_left(self) -> None:
        _, alive = psutil.wait_procs(self.children, timeout=10)
        assert alive == []

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


class Miles:
    """Starts runs whose folders lie below a temporary one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[MilesRun] = []

    def start(self, *, config: Path = CONFIG, arguments: Sequence[str] = (), **overrides: object) -> MilesRun:
        settings = {**SMALL, "run.dir": self.folder, "run.id": f"r{len(self.runs)}", **_dotted(overrides)}
        return self._launch(self.folder / str(settings["run.id"]), [str(config), *arguments], settings)

    def resume(self, run: MilesRun, **overrides: object) -> MilesRun:
        return self._launch(run.folder, ["--resume", str(run.folder)], _dotted(overrides))

    def _launch(self, folder: Path, words: Sequence[str], settings: Mapping[str, object]) -> MilesRun:
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        process = subprocess.Popen(
            [sys.executable, "-m", "miles_core.cli", "train", *words, *sets],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *_path()]), "COLUMNS": "200"},
        )
        run = MilesRun(folder, process)
        self.runs.append(run)
        return run

    def train(self, **overrides: object) -> MilesRun:
        run = self.start(**overrides)
        run.wait()
        return run


def _dotted(overrides: Mapping[str, object]) -> dict[str, object]:
    return {key.replace("__", "."): value for key, value in overrides.items()}


def _path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


@pytest.fixture
def miles(tmp_path: Path) -> Iterator[Miles]:
    starter = Miles(tmp_path)
    yield starter
    for run in starter.runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
