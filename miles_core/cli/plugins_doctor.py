"""``miles plugins doctor``: everything that is wrong with the plugins of this environment."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from miles_core.app.doctor.plugins import TIMEOUT, examine_plugins
from miles_core.cli.findings import table
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy


def doctor(
    *,
    imports: Annotated[bool, Parameter(name="--import")] = True,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = TIMEOUT,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print what is wrong; returns the exit code.

    Parameters
    ----------
    imports
        Load the plugins; --no-import reads metadata only.
    timeout
        Seconds that one plugin may take to import.
    json
        Print one JSON object with the keys ok and findings.
    """
    findings = examine_plugins(Hub.discover(PluginPolicy.of().lenient()), imports=imports, timeout=timeout)
    wrong = [finding for finding in findings if finding.state == "problem"]
    if json:
        report = {"ok": not wrong, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json_module.dumps(report, indent=2) + "\n")
    else:
        verdict = f"{len(wrong)} problem{'' if len(wrong) == 1 else 's'}" if wrong else "nothing is wrong"
        sys.stdout.write(f"{table(findings)}\n{verdict}\n")
    return 1 if wrong else 0
