"""A run that is stopped, however it is stopped, goes on as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from miles_core.lib.archive import load_archive
from miles_core.telemetry.episodes import read_episodes

from .conftest import ROOT

EXACT = {
    "rollout__groups_per_step": 3,
    "rollout__group_size": 4,
    "engine__deterministic": "true",
    "checkpoint__every": 2,
    "warmup__steps": 10,
}


def learned(run) -> list[dict[str, float]]:
    """The metrics that have nothing to do with time, nor with the numbers that versions have: a resume skips some."""
    timed = ("perf/", "plugins/", "weights/seconds/", "weights/version")
    return [
        {k: v for k, v in row.items() if not k.startswith(timed) and not k.endswith("_seconds")} for row in run.metrics
    ]


def versions(run) -> list[float]:
    return [row["weights/version"] for row in run.metrics]


def wait_for_rows(run, count: int) -> None:
    run.wait_for("metrics.jsonl")
    deadline = time.monotonic() + 60
    while len(run.metrics) < count:
        assert run.process.poll() is None, run.process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def model(run, step: int) -> bytes:
    return (run.folder / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()


def test_a_killed_run_resumes_bit_equal_to_one_that_was_never_killed(miles) -> None:
    whole = miles.train(run__steps=6, **EXACT)
    assert whole.process.returncode == 0, whole.output

    killed = miles.start(run__steps=6, **EXACT)
    killed.wait_for("checkpoints/step-2/state/manifest.json")
    wait_for_rows(killed, 3)
    killed.process.send_signal(signal.SIGKILL)
    killed.wait()
    killed.assert_nothing_left()

    # as if engines that outlive the driver had heard of more versions than the checkpoint knows
    (killed.folder / "weights" / "version").write_text("9\n")
    resumed = miles.resume(killed)
    assert resumed.wait() == 0, resumed.output
    done = int(resumed.output.partition("resumed after step ")[2].split()[0])
    assert [row["step"] for row in resumed.metrics] == [1, 2, 3, 4, 5, 6]
    assert learned(resumed) == learned(whole)
    assert any("train/loss" in row for row in learned(whole)[2:]), "something was learned after the kill"
    assert model(resumed, 6) == model(whole, 6)
    before, after = versions(resumed)[:done], versions(resumed)[done:]
    assert before == versions(whole)[:done]
    assert after == [10 + version - before[-1] for version in versions(whole)[done:]]


def test_ctrl_c_stops_after_the_step_with_a_checkpoint_that_the_run_goes_on_from(miles) -> None:
    run = miles.start(run__steps=500, run__max_empty_steps=500, checkpoint__every=0)
    wait_for_rows(run, 1)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    done = run.metrics[-1]["step"]
    assert f"interrupted after step {done}, with a checkpoint" in run.output
    assert f"miles train --resume {run.folder}" in run.output
    run.assert_nothing_left()

    resumed = miles.resume(run, run__steps=done + 1)
    assert resumed.wait() == 0, resumed.output
    assert f"run.steps: 500 -> {done + 1}" in resumed.output
    assert [row["step"] for row in resumed.metrics] == list(range(1, done + 2))


def seen(run) -> list[str]:
    """The tasks of every step that trained or dropped a group of them; a continued group has members of two steps."""
    groups = {(step.step, trajectory.task.id) for step in read_episodes(run.folder) for trajectory in step.trajectories}
    return [task for _, task in sorted(groups)]


def waiting(run, step: int) -> list[str]:
    """The tasks that a checkpoint says are still to come: begun, left over, or generated and not yet trained."""
    tree = load_archive(run.folder / "checkpoints" / f"step-{step}" / "state" / "rollout.npz")
    scheduler, steps = tree["scheduler"], tree["buffer"]
    groups = [*scheduler["pending"], *scheduler["left_over"], *(group for step in steps for group in step["groups"])]
    return [entry["task"]["id"] for entry in groups]


@pytest.mark.parametrize("stragglers", ["wait", "requeue"])
def test_no_task_is_lost_or_trained_twice_with_generation_ahead_and_groups_left_over(
    miles, tmp_path, stragglers: str
) -> None:
    tasks = [{"id": f"n{i:04}", "prompt": f"value of {'abcdefgh'[i % 8]}?", "label": str(i % 4)} for i in range(5000)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    options = {
        "data__path": tmp_path / "many.jsonl",
        "data__shuffle": "false",
        "rollout__max_staleness": 2,
        "rollout__max_steps_ahead": 1,
        "rollout__fill": "kept",
        "rollout__over_sampling": 1.5,
        "rollout__stragglers": stragglers,
        "rollout__max_groups_per_step": 12,
        "rollout__groups_per_step": 3,
        "rollout__group_size": 4,
        "run__episodes_per_step": 10_000,
        "checkpoint__every": 1,
    }
    run = miles.start(run__steps=500, run__max_empty_steps=500, **options)
    wait_for_rows(run, 3)
    run.process.kill()
    run.wait()
    done = max(int(path.name.split("-")[1]) for path in (run.folder / "checkpoints").glob("step-*"))
    resumed = miles.resume(run, run__steps=done + 3)
    assert resumed.wait() == 0, resumed.output
    assert [row["step"] for row in resumed.metrics] == list(range(1, done + 4))
    assert max(row["rollout/staleness_max"] for row in resumed.metrics) <= 2
    last = resumed.metrics[-1]
    everything = seen(resumed) + waiting(resumed, done + 3)
    assert len(everything) == len(set(everything)), "no task comes twice"
    ids = [task["id"] for task in tasks]
    assert sorted(everything) == ids[: len(everything)], "none is missing"
    assert len(everything) >= last["data/tasks"]


def test_a_run_that_is_going_on_is_not_resumed_beside_itself_and_a_finished_one_says_what_to_do(miles) -> None:
    run = miles.start(run__steps=500, run__max_empty_steps=500)
    run.wait_for("metrics.jsonl")
    second = miles.resume(run)
    assert second.wait() == 1
    assert f"another process works in {run.folder}: process {run.process.pid}" in second.output
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130

    done = run.metrics[-1]["step"]
    finished = miles.resume(run, run__steps=done)
    assert finished.wait() == 1
    assert f"has done {done} steps" in finished.output
    assert "--set run.steps=" in finished.output


def miles_command(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "miles_core.cli", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=100,
        check=False,
    )


def test_a_dumped_step_gives_the_same_numbers_again(miles) -> None:
    run = miles.train(arguments=("--dump", "2"), run__steps=2)
    assert run.process.returncode == 0, run.output
    again = miles_command("debug", "replay", str(run.folder), "2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "all equal" in again.stdout
    assert "advantages" in again.stdout
    missing = miles_command("debug", "replay", str(run.folder), "1")
    assert missing.returncode == 1
    assert "dumps of this run: step-2" in missing.stderr
    check_r3_report(str(run.folder))


def check_r3_report(folder: str) -> None:
    """The dumped step's routes: equal at first, and apart after the trainer's weights were perturbed."""
    same, apart = (
        json.loads(miles_command("r3", "report", folder, "--json", *options).stdout)
        for options in ((), ("--perturb", "0.05"))
    )
    assert same["step"] == apart["step"] == 2
    assert max(same["without"]["own"]) <= 0.01
    assert same["replayed"]["max_abs_diff"] < 1e-4
    assert min(apart["without"]["own"]) > 0.01
    assert apart["without"]["used"] == apart["without"]["own"]
    assert apart["replayed"]["used"] == [0, 0]
    assert apart["replayed"]["max_abs_diff"] > 1e-3
    shown = miles_command("r3", "report", folder, "--perturb", "0.05")
    assert "2 MoE layers of 8 experts, top-2, weights perturbed by 0.05" in shown.stdout


EVAL = '{data = {use = "jsonl", path = "tasks.jsonl"}, every = 2, tasks = 6, samples_per_task = 2}'


def test_evaluations_during_a_run_and_alone_agree_on_the_same_checkpoint(miles) -> None:
    run = miles.train(run__steps=2, eval=EVAL, engine__deterministic="true")
    assert run.process.returncode == 0, run.output
    during = run.metrics[-1]
    assert during["step"] == 2
    assert during["eval/tasks"] == 6
    assert during["eval/pass@2"] >= during["eval/pass@1"]
    alone = miles_command("eval", str(run.folder))
    assert alone.returncode == 0, alone.stderr
    assert f"reward {during['eval/reward']:.3f}" in alone.stdout
    assert f"pass@2 {during['eval/pass@2']:.3f}" in alone.stdout


def test_colocated_training_gives_what_disaggregated_training_gives(miles) -> None:
    options = {**EXACT, "rollout__groups_per_step": 4, "rollout__group_size": 8, "warmup__steps": 20}
    runs = [miles.train(run__steps=5, run__placement=where, **options) for where in ("colocated", "disaggregated")]
    assert [run.process.returncode for run in runs] == [0, 0], runs[0].output + runs[1].output
    assert learned(runs[0]) == learned(runs[1])
    assert model(runs[0], 5) == model(runs[1], 5)
    assert runs[0].metrics[-1]["weights/version"] >= 2, "engines were released and resumed more than once"


@pytest.mark.parametrize("newest", ["cut", "gone"])
def test_a_broken_newest_checkpoint_is_passed_over_with_a_warning(miles, newest: str) -> None:
    run = miles.train(run__steps=2, checkpoint__every=1)
    state = run.folder / "checkpoints" / "step-2" / "state" / "optimizer.safetensors"
    if newest == "cut":
        state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    else:
        state.unlink()
    resumed = miles.resume(run, run__steps=3)
    assert resumed.wait() == 0, resumed.output
    assert "resumed after step 1" in resumed.output
    assert str(state) in resumed.output
    assert [row["step"] for row in resumed.metrics] == [1, 2, 3]
