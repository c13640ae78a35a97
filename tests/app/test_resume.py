"""Resuming: which run, which checkpoint, what may differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.app.resume import clear_later, differences, load_resumed
from miles_core.app.run_lock import run_lock
from miles_core.app.run_state import RunState
from miles_core.app.saving import ROLLOUT_FILE, run_file
from miles_core.errors import CheckpointError, ConfigError
from miles_core.lib.archive import dump_archive
from miles_core.train.checkpoint import write_checkpoint

LOCK = [{"kind": "filters", "use": "x", "name": "x", "target": "a:b", "distribution": "acme", "version": "1.0"}]


def make_run(folder: Path) -> Path:
    run = folder / "r"
    run.mkdir()
    (run / "config.toml").write_text("")
    return run


def save(run: Path, step: int, files: dict[str, bytes] | None = None) -> Path:
    path = run / "checkpoints" / f"step-{step}"
    content = {
        **run_file(RunState(step=step, version=step), {"config": {}}),
        ROLLOUT_FILE: dump_archive({"step": step}),
    }
    write_checkpoint(
        path, lambda partial: (partial / "model").write_text("weights") and None, {**content, **(files or {})}
    )
    return path


def test_the_newest_whole_checkpoint_is_taken_and_broken_ones_make_room(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for step in (0, 10, 20):
        save(run, step)
    (run / "checkpoints" / "step-20" / "model").write_text("cut")
    resumed, saved = load_resumed(run)
    assert (resumed.path.name, resumed.state.step, resumed.state.version) == ("step-10", 10, 10)
    assert resumed.rollout == {"step": 10}
    assert len(saved.warnings) == 1
    assert "step-20" in saved.warnings[0]
    assert clear_later(run, saved.step) == ["step-20 is now step-20.old"]
    assert not (run / "checkpoints" / "step-20").exists(), "its step can be saved again"


def test_a_damaged_state_is_named_and_no_run_starts_from_scratch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    save(run, 10, {ROLLOUT_FILE: b"nonsense"})
    with pytest.raises(CheckpointError, match="state of .*step-10 is damaged"):
        load_resumed(run)


def test_a_state_without_later_fields_still_loads(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    save(run, 10, {"state/run.json": json.dumps({"state": {"step": 10, "version": 9}, "config": {}}).encode()})
    resumed, _ = load_resumed(run)
    assert (resumed.state.version, resumed.state.seconds, resumed.state.empty.steps) == (9, 0.0, 0)


def test_what_changed_is_said_key_by_key_and_plugin_by_plugin(quickstart) -> None:
    before = {"config": quickstart().config.model_dump(mode="json"), "plugins": LOCK}
    after = quickstart("run.steps=99", "rewards.0.min_turns=1", "run.name=other", "filters=[]").config
    lines = differences(before, after, [{**LOCK[0], "version": "1.1"}])
    assert lines == [
        "filters.0.timeout: 60.0 -> not set",
        'filters.0.use: "equal_rewards" -> not set',
        "rewards.0.min_turns: 2 -> 1",
        "run.steps: 60 -> 99",
        "plugin filters x: acme 1.0 (a:b) -> acme 1.1 (a:b)",
    ]
    assert differences(before, quickstart().config, LOCK) == []
    hooks = {"kind": "hooks", "use": "spy/hooks", "target": "spy_hooks", "distribution": "spy", "version": "1.0"}
    added = differences(before, quickstart().config, [*LOCK, hooks])
    assert added == ["plugin hooks spy/hooks: not used -> spy 1.0 (spy_hooks)"]


@pytest.mark.parametrize(("override", "key"), [("run.seed=5", "run.seed"), ("model.dtype=bfloat16", "model.dtype")])
def test_a_change_that_cannot_work_is_refused_with_its_reason(quickstart, override: str, key: str) -> None:
    before = {"config": quickstart().config.model_dump(mode="json"), "plugins": []}
    with pytest.raises(ConfigError, match=rf"cannot resume with another {key}, since"):
        differences(before, quickstart(override).config, [])


def test_a_run_folder_serves_one_process_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, miles_core.app.run_lock as m\n"
        "with m.run_lock(pathlib.Path(sys.argv[1])): print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(CheckpointError, match=f"another process works in .*process {holder.pid} on "),
            run_lock(tmp_path),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with run_lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / "run.lock").read_text()
