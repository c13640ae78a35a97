"""``miles weights verify`` on a real run, while it goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from .conftest import ROOT

# three commands beside a run that goes on
pytestmark = pytest.mark.timeout(300)


def verify(folder, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "miles_core.cli", "weights", "verify", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


def test_a_live_run_is_verified_and_one_that_has_ended_is_not(miles) -> None:
    run = miles.start(run__steps=500, run__max_empty_steps=500, checkpoint__every=1, engine__count=2)
    run.wait_for("weights/manifest.json", '"memory"')
    run.wait_for("checkpoints/step-2/state/manifest.json")
    live = verify(run.folder)
    assert live.returncode == 0, live.stdout + live.stderr
    assert live.stdout.count("holds what the trainer sent") == 2
    assert live.stdout.endswith("verified\n")

    found = json.loads(verify(run.folder, "--json").stdout)
    assert found["ok"], found
    assert [engine["state"] for engine in found["engines"]] == ["equal", "equal"]

    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    ended = verify(run.folder)
    assert ended.returncode == 1
    assert f"the run {run.folder} is not running" in ended.stderr
