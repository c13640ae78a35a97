"""``miles tito audit``: recorded sessions against a fresh render, for people and as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from miles_core.errors import DataError
from miles_core.session.audit import BUGS, KINDS, AuditReport, audit
from miles_core.session.record import read_record, recorded_clock
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path


def audit_file(file: Path, model: Path, clock: datetime | None, *, as_json: bool) -> int:
    """Audit the sessions of a file and print what was found; returns the exit code.

    Raises:
        DataError: naming the line, if one is no record of a session.
        ConfigError: if ``model`` has no tokenizer or chat template.
    """
    tokenizer = ChatTokenizer.load(model)
    reports: list[AuditReport] = []
    for name, record in _records(file):
        try:
            renderer = TemplateRenderer(tokenizer, clock or recorded_clock(record))
            report = audit(read_record(record), renderer, tokenizer)
        except DataError as error:
            raise DataError(f"{name}: {error.message}", remedy=error.remedy) from error
        reports.append(report)
        name = _named(name, record)
        sys.stdout.write(json.dumps(_as_dict(name, report)) + "\n" if as_json else _as_text(name, report))
    if not reports:
        raise DataError(f"{file} holds no session", remedy="Give what GET /sessions/ID answers.")
    return 0 if all(report.clean for report in reports) else 1


def _records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each session with its name: the file, or its line in the file."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}", remedy="Name a JSON or JSONL file in UTF-8.") from error
    try:
        whole = json.loads(text)
    except ValueError:
        lines = [(f"{file}, line {number}", line) for number, line in enumerate(text.split("\n"), start=1)]
        for name, line in lines:
            if line.strip():
                yield name, _record(name, _parsed(name, line))
    else:
        yield str(file), _record(str(file), whole)


def _parsed(name: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{name} is no JSON: {error}", remedy="Put one session on each line.") from error


def _record(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{name}: a session is a JSON object; got {type(value).__name__}")
    return value


def _named(name: str, record: dict[str, Any]) -> str:
    return f"session {record['id']}" if isinstance(record.get("id"), str) else name


def _as_dict(name: str, report: AuditReport) -> dict[str, Any]:
    return {
        "session": name,
        "turns": report.turns,
        "clean": report.clean,
        "counts": report.counts,
        "differences": [asdict(each) for each in report.differences],
        "refused": [{"turn": turn, "reason": reason} for turn, reason in report.refused],
    }


def _as_text(name: str, report: AuditReport) -> str:
    """Counts of a session, and the first difference of each kind."""
    verdict = "as the template writes it" if report.clean else "NOT as the template writes it"
    lines = [f"{name}: {report.turns} turns, {verdict}"]
    for kind in KINDS:
        count = report.counts[kind]
        lines.append(f"  {kind:15} {count} ({'bug' if kind in BUGS else 'expected'})")
        first = next((each for each in report.differences if each.kind == kind), None)
        if first is not None:
            lines.append(
                f"      turn {first.turn}, token {first.position}: stored {first.stored!r}, fresh {first.fresh!r}"
            )
    if report.refused:
        turn, reason = report.refused[0]
        lines.append(f"  not compared    {len(report.refused)}: the template refuses turn {turn}: {reason}")
    return "\n".join(lines) + "\n"
