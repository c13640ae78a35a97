"""What a check found, as a table for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.app.doctor import Finding


def table(findings: Sequence[Finding]) -> str:
    """One aligned row for each, with a line for the remedy of what is not ok."""
    width = max(len(finding.name) for finding in findings)
    indent = " " * (len("problem") + width + 4)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<7}  {finding.name:<{width}}  {finding.found}")
        if finding.state != "ok" and finding.remedy:
            lines.append(f"{indent}-> {finding.remedy}")
    return "\n".join(lines) + "\n"
