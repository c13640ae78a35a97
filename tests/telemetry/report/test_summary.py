"""The facts of a run: how far it came, whether it runs, how it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from miles_core.telemetry.ending import Ending, write_ending
from miles_core.telemetry.report.summary import facts_of, read_records, status_of

ROW = {"rollout/reward": 0.25, "perf/step_seconds": 40.0, "weights/version": 1.0}


def test_the_facts_of_a_run_that_goes_on(run_folder, tmp_path):
    rows = [{**ROW, "rollout/reward": reward} for reward in (0.0, 0.1, 0.2, 0.3, 0.4)]
    facts = dict(facts_of(read_records(run_folder(tmp_path / "toy", rows))))
    assert facts["status"] == "running"
    assert facts["steps"] == "5 of 6"
    assert facts["reward"] == "0.000 → 0.200 (mean of the last 5)"
    assert facts["model"] == "models/toy"
    assert facts["time in steps"] == "3 min 20 s"
    assert facts["miles"] == "0.1.0"


def test_a_run_that_wrote_nothing_for_long_has_stopped_and_the_last_step_finishes_it(run_folder, tmp_path):
    folder = run_folder(tmp_path / "toy", [ROW] * 5)
    then = time.time() - 7200
    for path in folder.iterdir():
        os.utime(path, (then, then))
    assert status_of(read_records(folder)).startswith("stopped after step 5: nothing was written for 2 h 0 min")
    assert status_of(read_records(run_folder(tmp_path / "done", [ROW] * 6))) == "finished"


def test_the_process_that_holds_the_folder_says_whether_a_run_goes_on(run_folder, tmp_path):
    folder = run_folder(tmp_path / "toy", [ROW])
    write_ending(folder, Ending("interrupted"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = f"process {child.pid} on {socket.gethostname()}\n"
    (folder / "run.lock").write_text(holder)
    assert status_of(read_records(folder)) == "running"
    child.communicate()
    assert status_of(read_records(folder)) == "interrupted"
    (folder / "ending.json").unlink()
    assert status_of(read_records(folder)).startswith("stopped after step 1")
    (folder / "run.lock").write_text(f"process {child.pid} on another-machine\n")
    assert status_of(read_records(folder)) == "running"


def test_a_recorded_ending_is_told(run_folder, tmp_path):
    folder = run_folder(tmp_path / "toy", [ROW])
    write_ending(folder, Ending("failed", "the engine-0 process died"))
    assert status_of(read_records(folder)) == "failed: the engine-0 process died"


@pytest.mark.parametrize("damage", ["", "= broken", "\x00"])
def test_missing_and_damaged_records_leave_facts_out(tmp_path, damage):
    if damage:
        (tmp_path / "config.toml").write_text(damage)
        (tmp_path / "plugins.json").write_text(damage)
    facts = dict(facts_of(read_records(tmp_path)))
    assert facts["steps"] == "0"
    assert "model" not in facts
    assert "reward" not in facts


def test_the_architecture_is_that_of_the_first_checkpoint(run_folder, tmp_path):
    folder = run_folder(tmp_path / "toy")
    (folder / "checkpoints" / "step-0").mkdir(parents=True)
    (folder / "checkpoints" / "step-0" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert dict(facts_of(read_records(folder)))["model"] == "models/toy (Qwen3ForCausalLM)"
