"""Engines and trainers that stop or die in the midst of a weight update, in whole runs of two engines."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import psutil
import pytest

from .conftest import Miles, MilesRun

pytestmark = pytest.mark.timeout(400)

ENDLESS = {"run__steps": 500, "run__max_empty_steps": 500}
WAIT = 180.0
# Signals its own process, once, when the given end of the second update has bucket 1.
FAULTY = """
import os
import signal
import sys
from pathlib import Path

from miles_plugins.transports.memory import Memory

HERE = Path(__file__).parent
IS_ENGINE_1 = sys.argv[-2:] == ["--index", "1"]


class Faulty(Memory):
    updates = 0

    def send(self, bucket, payload):
        self._meet("trainer", bucket)
        return super().send(bucket, payload)

    def receive(self, delivery, bucket, held):
        if IS_ENGINE_1:
            self._meet("engine", bucket)
        return super().receive(delivery, bucket, held)

    def _meet(self, end, bucket):
        Faulty.updates += bucket.index == 0
        asked = HERE / f"{end}.fault"
        if Faulty.updates == 2 and bucket.index == 1 and asked.exists():
            number = int(asked.read_text())
            asked.unlink()
            (HERE / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), number)
"""


@pytest.fixture
def faulty(miles: Miles) -> Iterator[Miles]:
    (miles.folder / "faulty.py").write_text(FAULTY)
    yield miles
    if (miles.folder / "pid").exists() and psutil.pid_exists(pid := int((miles.folder / "pid").read_text())):
        psutil.Process(pid).kill()


def start(miles: Miles, end: str, number: signal.Signals, **overrides: object) -> MilesRun:
    (miles.folder / f"{end}.fault").write_text(str(int(number)))
    return miles.start(
        **ENDLESS,
        engine__count=2,
        rollout__max_concurrency=4,
        weights__use="faulty:Faulty",
        weights__bucket_bytes=1 << 17,
        weights__patience=2,
        weights__timeout=20,
        **overrides,
    )


def test_a_receiver_that_is_killed_in_an_update_costs_no_step_and_comes_back(faulty: Miles) -> None:
    run = start(faulty, "engine", signal.SIGKILL)
    run.wait_for("logs/driver.log", "engine-1 serves again", WAIT)
    after = run.metrics[-1]["step"]
    run.wait_for("metrics.jsonl", f'"step": {after + 2},', WAIT)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert_whole(run)
    assert run.metrics[-1]["engine/restarts"] == 1
    assert sum(row.get("weights/left_behind", 0) for row in run.metrics) >= 1
    run.assert_nothing_left()


def test_a_stuck_receiver_that_goes_on_in_time_joins_again_without_a_restart(faulty: Miles) -> None:
    run = start(faulty, "engine", signal.SIGSTOP, engine__max_restarts=0)
    run.wait_for("logs/driver.log", "engine-1 is left behind", WAIT)
    psutil.Process(int((faulty.folder / "pid").read_text())).resume()
    after = run.metrics[-1]["step"] if (run.folder / "metrics.jsonl").exists() else 0
    run.wait_for("metrics.jsonl", f'"step": {after + 4},', WAIT)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert_whole(run)
    assert run.metrics[-1]["engine/restarts"] == 0
    assert run.metrics[-1].get("weights/left_behind", 0) == 0
    run.assert_nothing_left()


def test_a_trainer_that_is_killed_in_an_update_ends_the_run_and_is_its_cause(faulty: Miles) -> None:
    run = start(faulty, "trainer", signal.SIGKILL)
    run.wait_for("metrics.jsonl", "", WAIT)
    assert run.wait(WAIT) == 1
    assert "error: the trainer process died (signal SIGKILL)" in run.output
    assert "Traceback" not in run.output
    run.assert_nothing_left()


def assert_whole(run: MilesRun) -> None:
    """Every step has all its groups, no trajectory failed, and what was sampled came from the weights that it names."""
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert not {"rollout/dropped/failed", "rollout/dropped/aborted"} & set(row)
        assert row["rollout/groups_kept"] + row.get("rollout/dropped/equal_rewards", 0) == 4
        assert row.get("train/rollout_logprob_abs_diff_max", 0.0) < 1e-4, "the engine serves what its version says"
    versions = [row["weights/version"] for row in rows]
    assert versions == sorted(versions)
