"""Lifecycle hooks in a real run: every process, every hook, in order and as often as it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

SPY = """
import json, os
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent

def note(hook, *values):
    with open(HERE / "seen.jsonl", "a") as file:
        file.write(json.dumps([os.getpid(), hook, *values]) + "\\n")

def miles_config_loaded(config):
    note("config_loaded")
    if config.run.name == "forbidden":
        raise ValueError("this name is forbidden")
def miles_process_started(role, rank):
    note("process_started", role, rank)
    if role == "driver" and (HERE / "upgrade").exists():
        metadata = HERE / "spy-1.0.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
def miles_run_started(run): note("run_started", run.id, run.step)
async def miles_run_finished(run, error): note("run_finished", run.id, error and f"{type(error).__name__}: {error}")
def miles_rollout_started(step, tasks): note("rollout_started", step, len(tasks))
def miles_rollout_finished(step, groups, dropped): note("rollout_finished", step, len(groups) + sum(dropped.values()))
def miles_batch_ready(step, batch):
    note("batch_ready", step)
    return replace(batch, rewards=batch.rewards)
async def miles_trainer_built(trainer): note("trainer_built", type(trainer.model).__name__)
def miles_before_logprobs(trainer, batch): note("before_logprobs")
def miles_before_train_step(trainer, step): note("before_train_step", step)
def miles_step_finished(step, metrics): note("step_finished", step, "train/loss" in metrics)
async def miles_eval_finished(step, results): note("eval_finished", step)
def miles_weights_published(version, manifest): note("weights_published", version, manifest.version)
def miles_checkpoint_saved(step, path): note("checkpoint_saved", step, os.path.isdir(path))
def miles_engine_lost(url, error): note("engine_lost", url[:7], error)
"""


@dataclass
class Spy:
    """A distribution whose hooks note their calls in a file."""

    folder: Path

    def __post_init__(self) -> None:
        info = self.folder / "spy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[miles]\nhooks = spy_hooks\n")
        (self.folder / "spy_hooks.py").write_text(SPY)

    @property
    def seen(self) -> list[list]:
        file = self.folder / "seen.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def of(self, process: str) -> list[list]:
        """What one process saw, without its id."""
        (pid,) = {pid for pid, hook, *values in self.seen if hook == "process_started" and values[0] == process}
        return [call for number, *call in self.seen if number == pid]


@pytest.fixture
def spy(tmp_path: Path) -> Spy:
    return Spy(tmp_path)


def test_every_hook_is_called_in_its_process_in_order_as_often_as_it_says(miles, spy: Spy) -> None:
    evaluation = {"eval__data": '{use = "jsonl", path = "tasks.jsonl"}', "eval__every": 2, "eval__tasks": 2}
    run = miles.train(run__steps=2, checkpoint__every=1, **evaluation)
    assert run.process.returncode == 0, run.output
    assert "warning" not in run.output
    per_step = [["batch_ready", 0], ["before_logprobs"], ["before_train_step", 0]]
    steps = [call if len(call) == 1 else [call[0], step] for step in (0, 1) for call in per_step]
    built = [["process_started", "trainer", 0], ["trainer_built", "Qwen3MoeForCausalLM"]]
    assert spy.of("trainer") == [*built, *steps]
    assert spy.of("engine") == [["process_started", "engine", 0]]
    assert spy.of("router") == [["process_started", "router", 0]]
    driver = [call for call in spy.of("driver") if call[0] != "checkpoint_saved"]
    assert driver == [
        ["config_loaded"],
        ["process_started", "driver", 0],
        ["run_started", "r0", 0],
        ["rollout_started", 0, 4],
        ["rollout_finished", 0, 4],
        ["weights_published", 1, 1],
        ["step_finished", 1, True],
        ["rollout_started", 1, 4],
        ["rollout_finished", 1, 4],
        ["weights_published", 2, 2],
        ["step_finished", 2, True],
        ["eval_finished", 2],
        ["run_finished", "r0", None],
    ]
    saved = [call for call in spy.of("driver") if call[0] == "checkpoint_saved"]
    assert saved == [["checkpoint_saved", step, True] for step in (0, 1, 2)]
    lock = json.loads((run.folder / "plugins.json").read_text())
    assert {"kind": "hooks", "use": "spy/hooks", "name": "hooks", "target": "spy_hooks", "distribution": "spy",
            "version": "1.0"} in lock  # fmt: skip
    state = json.loads((run.folder / "checkpoints" / "step-2" / "state" / "run.json").read_text())
    assert state["plugins"] == lock


def test_a_rejected_config_makes_no_folder(miles, spy: Spy) -> None:
    run = miles.train(run__name="forbidden")
    assert run.process.returncode == 1
    assert (
        "miles_config_loaded() of hooks (spy 1.0) rejects the config: ValueError: this name is forbidden" in run.output
    )
    assert not run.folder.exists()
    assert [call for _, *call in spy.seen] == [["config_loaded"]]


def test_a_process_with_other_plugins_than_the_driver_stops_the_run_with_both_sides(miles, spy: Spy) -> None:
    (spy.folder / "upgrade").touch()
    run = miles.train()
    assert run.process.returncode == 1
    assert "trainer: the trainer process finds other plugins than the driver (driver -> trainer):" in run.output
    assert "plugin hooks spy/hooks: spy 1.0 (spy_hooks) -> spy 1.1 (spy_hooks)" in run.output
    assert "same Python environment" in run.output
    assert "Traceback" not in run.output
    assert ["run_finished"] not in [call[:1] for _, *call in spy.seen], "it never started"
    (spy.folder / "upgrade").unlink()


def test_an_engine_that_is_killed_is_told_as_lost_and_is_the_error_that_the_run_finished_with(miles, spy: Spy) -> None:
    run = miles.start(run__steps=500, run__max_empty_steps=500, engine__max_restarts=0)
    run.wait_for("../seen.jsonl", "step_finished")
    run.child("engine").kill()
    assert run.wait() == 1
    run.assert_nothing_left()
    death = "the engine-0 process died (signal SIGKILL)"
    assert [call for _, *call in spy.seen if call[0] == "engine_lost"] == [["engine_lost", "http://", death]]
    ((_, name, error),) = [call for _, *call in spy.seen if call[0] == "run_finished"]
    assert name == "r0"
    assert error.startswith(f"EngineError: {death}")
