"""MLflow's own client reads back what the tracker wrote into a local store."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_plugins.trackers.mlflow import Mlflow, MlflowConfig

pytest.importorskip("mlflow", reason="the extra `trackers` is not installed")

CONFIG = {"run": {"seed": 3}, "rewards": [{"use": "exact_match", "weight": 2.0}], "filters": []}


def tracker(folder: Path, **options: Any) -> Mlflow:
    services = {"config": CONFIG, "run_id": "run-a", "resume_step": None}
    return Mlflow(MlflowConfig(**options), PluginContext(run_dir=folder, services=services))


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    made = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    monkeypatch.undo()
    return made


def only_run(client: Any, experiment: str = "miles") -> Any:
    [run] = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def history(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def test_the_local_store_holds_every_step_the_config_and_the_tags(tmp_path: Path, client: Any) -> None:
    made = tracker(tmp_path, experiment="digits", tags={"team": "blue"})
    for step in (1, 2):
        made.log(step, {"train/loss": 0.5 / step, "perf/phase/train": 2.0})
    assert only_run(client, "digits").info.status == "RUNNING"
    made.close()
    run = only_run(client, "digits")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run-a"
    assert run.data.tags["team"] == "blue"
    assert run.data.params == {
        "run.seed": "3", "rewards.0.use": "exact_match", "rewards.0.weight": "2.0", "filters": "[]",
    }  # fmt: skip
    assert history(client, run, "train/loss") == [(1, 0.5), (2, 0.25)]
    assert history(client, run, "perf/phase/train") == [(1, 2.0), (2, 2.0)]
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ


def test_a_resumed_run_goes_on_with_the_same_run(tmp_path: Path, client: Any) -> None:
    for steps in ((1, 2, 3), (3, 4)):
        made = tracker(tmp_path)
        for step in steps:
            made.log(step, {"loss": float(step)})
        made.close()
    assert sorted(history(client, only_run(client), "loss")) == [(1, 1.0), (2, 2.0), (3, 3.0), (3, 3.0), (4, 4.0)]


def test_values_that_are_not_finite_and_names_that_mlflow_refuses_are_recorded(tmp_path: Path, client: Any) -> None:
    made = tracker(tmp_path)
    made.log(1, {"nan": math.nan, "inf": math.inf, "rollout/dropped/too long (12 > 9)": 4.0})
    made.close()
    run = only_run(client)
    assert math.isnan(history(client, run, "nan")[0][1])
    assert history(client, run, "inf") == [(1, math.inf)]
    assert history(client, run, "rollout/dropped/too long _12 _ 9_") == [(1, 4.0)]


def test_more_parameters_than_one_request_takes_are_all_logged(tmp_path: Path, client: Any) -> None:
    services = {"config": {"data": {f"key{index}": index for index in range(250)}, "long": "x" * 7000}}
    Mlflow(MlflowConfig(), PluginContext(run_dir=tmp_path, services=services)).close()
    run = only_run(client)
    assert len(run.data.params) == 251
    assert run.info.run_name == tmp_path.name


def test_a_store_that_cannot_be_reached_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "mlruns").write_text("a file")
    with pytest.raises(PluginError, match="tracker mlflow: cannot begin a run in file://") as caught:
        tracker(tmp_path)
    assert "tracking_uri" in str(caught.value)


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(PluginError, match="tracker mlflow needs the Python package 'mlflow'") as caught:
        tracker(tmp_path)
    assert "pip install 'miles-hub[trackers]'" in str(caught.value)
