"""An engine that is killed in the midst of a run costs time: no step, no trajectory, no version."""

from __future__ import annotations

import signal

import pytest

from .conftest import SMALL, MilesRun

ENDLESS = {"run__steps": 500, "run__max_empty_steps": 500}
# Kills between the turns of an episode, once there was a weight update, and goes on when the driver has noticed.
KILLING = """
import os

import anyio
import psutil

from miles_plugins.environments.lookup import Lookup


def is_engine_0(words):
    return words[-2:] == ["--index", "0"] or "miles_core.engine.sglang.launch" in words


class Killing(Lookup):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.run_dir = context.run_dir

    async def step(self, response):
        metrics, killed = self.run_dir / "metrics.jsonl", self.run_dir / "killed"
        if metrics.exists() and '"weights/version": 2.0' in metrics.read_text() and not killed.exists():
            killed.touch()
            children = psutil.Process(os.getpid()).children()
            engine = next(child for child in children if is_engine_0(child.cmdline()))
            engine.kill()
            while psutil.pid_exists(engine.pid):
                await anyio.sleep(0.01)
        return await super().step(response)
"""


@pytest.mark.parametrize(
    ("engines", "overrides"),
    [(1, {}), (2, {"rollout__max_concurrency": 4}), (1, {"run__placement": "colocated"})],
    ids=["one", "two", "colocated"],
)
def test_a_run_goes_on_when_an_engine_is_killed(miles, engines: int, overrides) -> None:
    (miles.folder / "killing.py").write_text(KILLING)
    run = miles.start(**ENDLESS, engine__count=engines, environments='[{use = "killing:Killing"}]', **overrides)
    run.wait_for("logs/driver.log", "serves again")
    after = len(run.metrics)
    run.wait_for("metrics.jsonl", f'"step": {after + 3},')
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert run.output.count("the engine-0 process died (signal SIGKILL)") == 1
    assert ("generation waits" in run.output) == (engines == 1)
    assert_whole(run)
    run.assert_nothing_left()


def assert_whole(run: MilesRun) -> None:
    """Every step has all its trajectories, none failed, versions only grow, and the restart is counted."""
    assert [row["step"] for row in run.metrics] == list(range(1, len(run.metrics) + 1))
    for row in run.metrics:
        assert not {"rollout/dropped/failed", "rollout/dropped/aborted"} & set(row)
        groups = row["rollout/groups_kept"] + row.get("rollout/dropped/equal_rewards", 0)
        assert groups == SMALL["rollout.groups_per_step"]
        assert row.get("train/rollout_logprob_abs_diff_max", 0.0) < 1e-4, "the engine serves the weights of its version"
    versions = [row["weights/version"] for row in run.metrics]
    assert versions == sorted(versions)
    assert versions[-1] == sum("train/loss" in row for row in run.metrics)
    assert (run.metrics[0]["engine/restarts"], run.metrics[-1]["engine/restarts"]) == (0, 1)
