"""How a run ended, as a file of its folder: what tells a finished run from one whose process is gone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

FILE = "ending.json"

Kind = Literal["finished", "solved", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Ending:
    """``detail`` is one or more lines for a person, such as the error of a run that failed."""

    kind: Kind
    detail: str = ""


def write_ending(run_dir: Path, ending: Ending) -> None:
    """Record how a run ended; a run that is resumed writes a new one at its own end.

    Raises:
        OSError: if the disk is full or not writable.
    """
    (run_dir / FILE).write_text(json.dumps(asdict(ending)) + "\n", "utf-8")


def read_ending(run_dir: Path) -> Ending | None:
    """How a run ended; ``None`` while it runs, when it was resumed since, and when nothing could record it."""
    path, metrics = run_dir / FILE, run_dir / "metrics.jsonl"
    try:
        if metrics.exists() and metrics.stat().st_mtime_ns > path.stat().st_mtime_ns:
            return None
        data = json.loads(path.read_text("utf-8"))
        return Ending(data["kind"], data.get("detail", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
