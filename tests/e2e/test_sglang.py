"""The quickstart on real SGLang, on a CPU."""

from __future__ import annotations

import os
import signal

import pytest

from miles_core.engine.sglang.cpu.environment import cpu_environment

from .test_restarts import ENDLESS, KILLING, assert_whole

# a server needs about a minute to start, and more where other work shares the machine
SECONDS = 300
pytestmark = pytest.mark.timeout(3 * SECONDS)


@pytest.fixture(autouse=True)
def _sglang() -> None:
    if cpu_environment() is not None:
        return
    message = "SGLang is not set up for this machine: run `make sglang-cpu`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def test_logprobs_and_routes_of_the_rollout_are_the_trainer_s_own(miles) -> None:
    options = {"run__placement": "colocated", "run__true_on_policy": "report"}
    run = miles.start(engine__use="sglang", run__steps=3, **options)
    assert run.wait(SECONDS) == 0, run.output
    assert "true on-policy: largest" in run.output
    [check] = [row for row in run.metrics if "on_policy/engine-0/batch_8_abs_diff_max" in row]
    assert 0 < check["on_policy/engine-0/admission_abs_diff_max"] < 1e-4
    trained = [row for row in run.metrics if "train/loss" in row]
    assert trained[-1]["weights/version"] == len(trained) >= 2
    for row in trained:
        assert row["train/rollout_logprob_abs_diff_max"] < 1e-4, "the weights that sampled are those of the version"
        assert row["replay/mismatch_fraction"] < 0.01


def test_a_server_that_is_killed_comes_back_with_the_committed_weights(miles) -> None:
    (miles.folder / "killing.py").write_text(KILLING)
    run = miles.start(**ENDLESS, engine__use="sglang", environments='[{use = "killing:Killing"}]')
    run.wait_for("logs/driver.log", "serves again", 2 * SECONDS)
    after = len(run.metrics)
    run.wait_for("metrics.jsonl", f'"step": {after + 2},', SECONDS)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert_whole(run)
    run.assert_nothing_left()
