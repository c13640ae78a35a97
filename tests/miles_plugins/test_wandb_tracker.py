"""W&B's offline files hold what the tracker logged; nothing leaves the machine."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from miles_core.errors import PluginError
from miles_core.kinds.base import PluginContext
from miles_plugins.trackers.wandb import Wandb, WandbConfig

pytest.importorskip("wandb", reason="the extra `trackers` is not installed")

BLOCK = 32768
HEADER = 7


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)


def tracker(folder: Path, **options: Any) -> Wandb:
    services = {"config": {"run": {"seed": 3}}, "run_id": "run-a", "resume_step": None}
    return Wandb(WandbConfig(**{"mode": "offline", **options}), PluginContext(run_dir=folder, services=services))


def payloads(data: bytes) -> Iterator[bytes]:
    """The records of a log of blocks; each piece has a checksum, a length and a type: whole, first, middle or last."""
    at, pieces = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield pieces
            pieces = b""


def records(folder: Path, kind: str) -> list[Any]:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process ends as it does at the end of ours, with everything on disk
    read = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for payload in payloads(file.read_bytes()):
            record = Record.FromString(payload)
            if record.WhichOneof("record_type") == kind:
                read.append(getattr(record, kind))
    return read


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.item}
        for record in records(folder, "history")
    ]


def test_offline_files_hold_project_config_tags_and_every_step(tmp_path: Path) -> None:
    made = tracker(tmp_path, project="p", entity="team", tags=("a", "b"))
    for step in (1, 2, 3):
        made.log(step, {"train/loss": 0.5 / step, "rollout/reward": 0.25})
    made.close()
    run = records(tmp_path, "run")[0]
    assert (run.project, run.entity, run.display_name, list(run.tags)) == ("p", "team", "run-a", ["a", "b"])
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["run"] == {"seed": 3}
    logged = [(row["step"], row["train/loss"], row["rollout/reward"]) for row in rows(tmp_path)]
    assert logged == [(step, 0.5 / step, 0.25) for step in (1, 2, 3)]


def test_values_that_are_not_finite_are_recorded(tmp_path: Path) -> None:
    made = tracker(tmp_path)
    made.log(1, {"nan": float("nan"), "inf": float("inf"), "loss": 1.0})
    made.close()
    row = rows(tmp_path)[0]
    assert str(row["nan"]).lower() == "nan"
    assert str(row["inf"]).lower().startswith("inf")
    assert row["loss"] == 1.0


def test_a_resumed_run_goes_on_under_the_same_id_and_may_log_a_step_again(tmp_path: Path) -> None:
    for steps in ((1, 2, 3), (3, 4)):
        made = tracker(tmp_path)
        for step in steps:
            made.log(step, {"loss": 1.0})
        made.close()
    assert len({run.run_id for run in records(tmp_path, "run")}) == 1
    assert sorted(row["step"] for row in rows(tmp_path)) == [1, 2, 3, 3, 4]
    (other := tmp_path / "other").mkdir()
    tracker(other).close()
    assert records(other, "run")[0].run_id != records(tmp_path, "run")[0].run_id


def test_disabled_records_nothing(tmp_path: Path) -> None:
    made = tracker(tmp_path, mode="disabled")
    made.log(1, {"loss": 1.0})
    made.close()
    assert rows(tmp_path) == []


def test_a_service_that_does_not_answer_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(PluginError, match="cannot begin a run in mode 'online'") as caught:
            tracker(tmp_path, mode="online", init_timeout=1.0)
    assert 'mode = "offline"' in str(caught.value)


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PluginError, match="tracker wandb needs the Python package 'wandb'") as caught:
        tracker(tmp_path)
    assert "pip install 'miles-hub[trackers]'" in str(caught.value)
