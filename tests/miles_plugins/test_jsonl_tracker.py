"""Metrics on disk: one object per step, at once, and none twice after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_plugins.trackers.jsonl import Jsonl


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def resumed(folder: Path, step: int | None) -> Jsonl:
    return Jsonl(None, PluginContext(run_dir=folder, services={"resume_step": step}))


def test_each_step_is_one_line_that_is_there_at_once(tmp_path: Path) -> None:
    tracker = Jsonl(None, PluginContext(run_dir=tmp_path))
    tracker.log(1, {"train/loss": 0.5, "train/bad": float("nan"), "train/inf": float("-inf")})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 1, "train/loss": 0.5, "train/bad": None, "train/inf": None}
    tracker.log(2, {})
    tracker.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("step", [0, 3, 5, 9])
def test_a_resumed_run_takes_out_the_steps_that_come_again(tmp_path: Path, step: int) -> None:
    first = resumed(tmp_path, None)
    for number in range(1, 6):
        first.log(number, {"loss": 1.0})
    first.close()
    again = resumed(tmp_path, step)
    again.log(step + 1, {"loss": 2.0})
    again.close()
    assert steps(tmp_path) == [*range(1, min(step, 5) + 1), step + 1]


@pytest.mark.parametrize("torn", ['{"step": 3, "loss"', '{"step": 3}', "\x00\x00\x00", "null\n", '{"loss": 1}\n'])
def test_a_resumed_run_takes_out_what_a_kill_cut_off(tmp_path: Path, torn: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + torn)
    tracker = resumed(tmp_path, 3)
    tracker.log(4, {})
    tracker.close()
    assert steps(tmp_path) == [1, 2, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_resuming_without_a_file_begins_one(tmp_path: Path) -> None:
    tracker = resumed(tmp_path, 7)
    tracker.log(8, {})
    tracker.close()
    assert steps(tmp_path) == [8]


def test_it_needs_a_run_folder() -> None:
    with pytest.raises(PluginError, match="run directory"):
        Jsonl(None, PluginContext())
