"""TensorBoard's own reader finds what the tracker wrote."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_plugins.trackers.tensorboard import TensorBoard, TensorBoardConfig

pytest.importorskip("tensorboard", reason="the extra `trackers` is not installed")


def tracker(run_dir: Path, resume_step: int | None = None, **options: str) -> TensorBoard:
    context = PluginContext(run_dir=run_dir, services={"resume_step": resume_step})
    return TensorBoard(TensorBoardConfig(**options), context)


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_are_on_disk_after_each_step(tmp_path: Path) -> None:
    made = tracker(tmp_path)
    made.log(1, {"train/loss": 0.5, "rollout/reward": 0.25})
    assert scalars(tmp_path / "tensorboard", "train/loss") == [(1, 0.5)]
    made.log(2, {"train/loss": 0.125})
    made.close()
    assert scalars(tmp_path / "tensorboard", "train/loss") == [(1, 0.5), (2, 0.125)]
    assert scalars(tmp_path / "tensorboard", "rollout/reward") == [(1, 0.25)]


def test_values_that_are_not_finite_are_kept_as_they_are(tmp_path: Path) -> None:
    made = tracker(tmp_path, folder="events")
    made.log(1, {"nan": math.nan, "inf": -math.inf})
    made.close()
    assert math.isnan(scalars(tmp_path / "events", "nan")[0][1])
    assert scalars(tmp_path / "events", "inf") == [(1, -math.inf)]


def test_a_resumed_run_replaces_the_steps_that_come_again(tmp_path: Path) -> None:
    first = tracker(tmp_path)
    for step in range(1, 6):
        first.log(step, {"loss": float(step)})
    first.close()
    again = tracker(tmp_path, resume_step=3)
    for step in (4, 5, 6):
        again.log(step, {"loss": 10.0 * step})
    again.close()
    assert scalars(tmp_path / "tensorboard", "loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0), (6, 60.0)]


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from miles_core.api import PluginContext
from miles_plugins.trackers.tensorboard import TensorBoard, TensorBoardConfig
TensorBoard(TensorBoardConfig(), PluginContext(run_dir=Path({str(tmp_path)!r}))).close()
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(PluginError, match="tracker tensorboard needs the Python package 'tensorboard'") as caught:
        tracker(tmp_path)
    assert "pip install 'miles-hub[trackers]'" in str(caught.value)


def test_it_needs_a_run_folder() -> None:
    with pytest.raises(PluginError, match="run directory"):
        TensorBoard(TensorBoardConfig(), PluginContext())
