"""The metrics of a run over its steps, read while the run may still write."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class History:
    """``rows`` are the metrics of each of ``steps``, ascending; ``unreadable`` counts lines that hold none."""

    steps: tuple[int, ...] = ()
    rows: tuple[dict[str, float], ...] = ()
    unreadable: int = 0

    @property
    def names(self) -> list[str]:
        """Every metric that some step has, in the order in which the run reports them."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def series(self, name: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The steps that have a metric, and its values."""
        pairs = [(step, row[name]) for step, row in zip(self.steps, self.rows, strict=True) if name in row]
        return tuple(step for step, _ in pairs), tuple(value for _, value in pairs)

    def filled(self, name: str) -> tuple[float, ...]:
        """A counter's value at each step: 0 where the step does not report it."""
        return tuple(row.get(name, 0.0) for row in self.rows)


def read_history(path: Path) -> History:
    """The metrics of a ``metrics.jsonl``; empty without one.

    A last line without its end is still being written, and left out. A second line of a step adds to the first, as an
    evaluation after the last step does. A line of an earlier step means that the run went back to it: what stood there
    from that step on does not count any more.
    """
    if not path.is_file():
        return History()
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    parsed = [_parse(line) for line in lines if line.strip()]
    rows: dict[int, dict[str, float]] = {}
    for step, row in filter(None, parsed):
        if rows and step < max(rows):
            rows = {earlier: kept for earlier, kept in rows.items() if earlier < step}
        rows.setdefault(step, {}).update(row)
    return History(tuple(rows), tuple(rows.values()), unreadable=parsed.count(None))


def _parse(line: str) -> tuple[int, dict[str, float]] | None:
    try:
        row: Any = json.loads(line)
        step = int(row.pop("step"))
        return step, {name: float(value) for name, value in row.items() if _is_number(value)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
