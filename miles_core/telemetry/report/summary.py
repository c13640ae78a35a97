"""The facts at the top of the page: what ran, how far it came, how it ended."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import tomllib
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from miles_core.telemetry.ending import read_ending
from miles_core.telemetry.report.history import History, read_history

if TYPE_CHECKING:
    from pathlib import Path

_QUIET_SECONDS = 600.0
_HOLDER = re.compile(r"process (\d+) on (\S+)")
_LAST_REWARDS = 5


@dataclass(frozen=True)
class RunRecords:
    """The files of a run apart from its episodes; each is empty where it is missing or cannot be read."""

    run_dir: Path
    history: History
    config_text: str
    config: dict[str, Any]
    plugins: list[dict[str, Any]]

    @property
    def default_environment(self) -> str:
        """The environment of tasks that ask for none."""
        tables = self.config.get("environments") or [{}]
        return str(tables[0].get("name") or tables[0].get("use", ""))


def read_records(run_dir: Path) -> RunRecords:
    """Read a run's folder as it is now."""
    text = _text(run_dir / "config.toml")
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        config = {}
    return RunRecords(run_dir, read_history(run_dir / "metrics.jsonl"), text, config, _plugins(run_dir))


def facts_of(records: RunRecords) -> list[tuple[str, str]]:
    """Pairs of label and text, in reading order."""
    history, config = records.history, records.config
    seconds = sum(history.series("perf/step_seconds")[1])
    target = config.get("run", {}).get("steps")
    done = history.steps[-1] if history.steps else 0
    facts = [
        ("status", status_of(records)),
        ("steps", f"{done} of {target}" if target else str(done)),
        ("reward", _rewards(history)),
        ("model", _model(records)),
        ("policy version", _last(history, "weights/version")),
        ("time in steps", _duration(seconds) if seconds else ""),
        ("last start", _moment(records.run_dir / "config.toml")),
        ("last step", _moment(records.run_dir / "metrics.jsonl")),
        ("miles", _own_version(records.plugins)),
        ("folder", str(records.run_dir)),
    ]
    return [(label, text) for label, text in facts if text]


def status_of(records: RunRecords) -> str:
    """``running``, ``finished``, ``solved``, ``failed: ...`` or what else is known."""
    alive = _process_lives(records.run_dir / "run.lock")
    if alive:
        return "running"
    ending = read_ending(records.run_dir)
    if ending is not None:
        return f"{ending.kind}: {ending.detail}" if ending.detail else ending.kind
    steps = records.history.steps
    if steps and steps[-1] == records.config.get("run", {}).get("steps"):
        return "finished"
    quiet = time.time() - _last_sign(records.run_dir)
    usual = median(records.history.series("perf/step_seconds")[1] or (0.0,))
    if alive is None and quiet < max(_QUIET_SECONDS, 5 * usual):
        return "running"
    where = f"after step {steps[-1]}" if steps else "before the first step"
    return f"stopped {where}: nothing was written for {_duration(quiet)}, and no ending is recorded"


def _process_lives(lock: Path) -> bool | None:
    """Whether the process that a ``run.lock`` names runs; ``None`` where it is on another machine, or none is named."""
    match = _HOLDER.match(_text(lock))
    if match is None or match[2] != socket.gethostname():
        return None
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and somebody else's
        return True
    return True


def _last_sign(run_dir: Path) -> float:
    files = [run_dir / "config.toml", run_dir / "metrics.jsonl", *run_dir.glob("logs/*")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _rewards(history: History) -> str:
    _, rewards = history.series("rollout/reward")
    if not rewards:
        return ""
    tail = rewards[-_LAST_REWARDS:]
    over = f" (mean of the last {len(tail)})" if len(rewards) > 1 else ""
    return f"{rewards[0]:.3f} → {fmean(tail):.3f}{over}"


def _model(records: RunRecords) -> str:
    path = str(records.config.get("model", {}).get("path", ""))
    try:
        described = json.loads((records.run_dir / "checkpoints" / "step-0" / "config.json").read_text("utf-8"))
        names = ", ".join(str(name) for name in described.get("architectures") or ())
    except (OSError, ValueError, AttributeError):
        names = ""
    return f"{path} ({names})" if path and names else path or names


def _own_version(plugins: list[dict[str, Any]]) -> str:
    return next((str(row.get("version", "")) for row in plugins if row.get("distribution") == "miles-hub"), "")


def _last(history: History, name: str) -> str:
    _, values = history.series(name)
    return f"{values[-1]:g}" if values else ""


def _plugins(run_dir: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(_text(run_dir / "plugins.json"))
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _moment(path: Path) -> str:
    if not path.exists():
        return ""
    return f"{datetime.fromtimestamp(path.stat().st_mtime).astimezone():%Y-%m-%d %H:%M:%S}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
