"""What a benchmark returns, as a table for a person or as JSON for a machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

Value: TypeAlias = "str | float | int | bool | None"


@dataclass(frozen=True)
class Report:
    """``rows`` share their keys; ``summary`` is what a reader takes away; ``notes`` say what was compared with what."""

    benchmark: str
    rows: list[dict[str, Value]]
    summary: dict[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def as_json(report: Report) -> str:
    """One JSON object with the fields of :class:`Report`."""
    return json.dumps(asdict(report), indent=2) + "\n"


def as_text(report: Report) -> str:
    """An aligned table, the summary and the notes."""
    header = list(report.rows[0]) if report.rows else []
    lines = [
        [name.replace("_", " ") for name in header],
        *([shown(row[name]) for name in header] for row in report.rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    table = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    summary = [f"{name.replace('_', ' ')}: {shown(value)}" for name, value in report.summary.items()]
    return "\n\n".join("\n".join(part) for part in (table, summary, report.notes) if part) + "\n"


def shown(value: Value) -> str:
    """A value with four significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.4g}"
    return f"{value:.0f}" if abs(value) >= 1e3 else f"{value:.2e}"
