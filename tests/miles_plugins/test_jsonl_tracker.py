"""Metrics on disk: one object per step, at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_plugins.trackers.jsonl import Jsonl


def test_each_step_is_one_line_that_is_there_at_once(tmp_path: Path) -> None:
    tracker = Jsonl(None, PluginContext(run_dir=tmp_path))
    tracker.log(1, {"train/loss": 0.5, "train/bad": float("nan")})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 1, "train/loss": 0.5, "train/bad": None}
    tracker.log(2, {})
    tracker.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_it_needs_a_run_folder() -> None:
    with pytest.raises(PluginError, match="run directory"):
        Jsonl(None, PluginContext())
