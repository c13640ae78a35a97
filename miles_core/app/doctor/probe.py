"""Importing a package in a process of its own: one that hangs, crashes or prints cannot harm ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

MARK = "miles-probe:"
TIMEOUT = 120.0
"""A cold disk or a busy machine makes a large package slow, not broken."""
_PROGRAM = f"""
import importlib, json, sys
module, code = sys.argv[1:]
found = importlib.import_module(module)
facts = {{}}
exec(code)
print("\\n{MARK}" + json.dumps(facts), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """Facts that the package told, or why it could not be imported."""

    facts: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


def probe(module: str, code: str = "", *, timeout: float = TIMEOUT) -> Probe:
    """Import ``module`` elsewhere and run ``code``, which may fill ``facts`` from the module ``found``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, module, code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # what the package starts is ended with it
        env={**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"},
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Probe(failure=f"its import takes longer than {timeout:g} s")
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    marked = [line for line in output.splitlines() if line.startswith(MARK)]
    if process.returncode == 0 and marked:
        return Probe(facts=json.loads(marked[-1].removeprefix(MARK)))
    return Probe(failure=f"its import fails: {_cause(process.returncode, errors)}")


def _cause(code: int, errors: str) -> str:
    if code < 0:
        return f"the process died of signal {signal.Signals(-code).name}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"the process ended with exit code {code}"
