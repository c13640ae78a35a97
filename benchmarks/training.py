"""Runs of the quickstart as a user starts them: ``miles train`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Path(__file__).resolve().parent.parent / "examples" / "quickstart" / "config.toml"
STOP_SECONDS = 20.0


@contextmanager
def training(run_dir: Path, *overrides: str, config: Path = CONFIG) -> Iterator[subprocess.Popen[bytes]]:
    """Train ``config`` into ``run_dir``, which must not exist; on exit the run is over or has been ended."""
    settings = (f"run.dir={run_dir.parent}", f"run.id={run_dir.name}", *overrides)
    argv = [sys.executable, "-m", "miles_core.cli", "train", str(config), *(f"--set={text}" for text in settings)]
    with _log(run_dir).open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # miles ends its children in order on SIGTERM
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def train(run_dir: Path, *overrides: str, config: Path = CONFIG) -> None:
    """Train to the end.

    Raises:
        MilesError: with the end of its output, if the run fails.
    """
    with training(run_dir, *overrides, config=config) as process:
        process.wait()
    check(process, run_dir)


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The metrics of every step so far."""
    file = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.is_file() else []


def check(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Raise if a finished run failed."""
    if process.returncode:
        tail = "\n  ".join(_log(run_dir).read_text("utf-8", errors="replace").splitlines()[-12:])
        raise MilesError(
            f"the quickstart ended with exit code {process.returncode}:\n  {tail}",
            remedy=f"Run `miles train {CONFIG}` by itself to see more.",
        )


def _log(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.log")
