"""What is wrong with the plugins of this environment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from miles_core.app.doctor.finding import Finding
from miles_core.app.doctor.trial import load_all

if TYPE_CHECKING:
    from miles_core.plugins.hub import Hub

TIMEOUT = 60.0
"""Seconds that one plugin may take to import: a cold disk makes a large package slow, not broken."""


def examine_plugins(hub: Hub, *, imports: bool = True, timeout: float = TIMEOUT) -> list[Finding]:
    """What metadata tells, and what comes of loading every plugin that may be used in a child process."""
    usable = [row.ref for row in hub.listing if not row.left_out]
    rows = [
        Finding(problem.distribution or "plugins", "problem", problem.text, problem.remedy) for problem in hub.diagnosis
    ]
    summary = f"{len(usable)} plugins of {len({ref.distribution for ref in usable})} distributions"
    if imports:
        failed = load_all(usable, timeout)
        summary += f", {len(failed)} do not load" if failed else ", all load"
        rows += failed
    left_out = Counter((row.ref.distribution, row.state, row.reason, row.remedy) for row in hub.listing if row.left_out)
    notes = [
        Finding(str(name), "missing", f"{count} left out: {state}, because {reason}", remedy)
        for (name, state, reason, remedy), count in sorted(left_out.items())
        if state != "incompatible"  # among the problems already
    ]
    return [Finding("plugins", "ok", summary), *notes, *rows]
