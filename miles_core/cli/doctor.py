"""``miles doctor``: what this machine can run."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from miles_core.app.doctor import examine
from miles_core.cli.findings import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.app.doctor import Finding


def doctor(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Check Python, packages, GPUs, disks, ports and plugins, each with a remedy; nothing is downloaded or changed.

    Exits with 1 only if something is broken that every run needs. `missing` is optional and absent, `problem` is
    there and does not work.

    Parameters
    ----------
    json
        Print one JSON object with the keys ok and findings.
    """
    findings = examine()
    fatal = [finding for finding in findings if finding.is_fatal]
    if json:
        report = {"ok": not fatal, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json_module.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write(table(findings) + _verdict(fatal))
    return 1 if fatal else 0


def _verdict(fatal: Sequence[Finding]) -> str:
    if fatal:
        return f"\nno run works before this is repaired: {', '.join(finding.name for finding in fatal)}\n"
    return "\nthis machine can train: `make quickstart`, or miles train examples/quickstart/config.toml\n"
