"""Run folders are made once and hold what it takes to repeat a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from miles_core.app.run_dir import create_run_dir, records_replaced, write_records
from miles_core.config.load import load_config
from miles_core.errors import CheckpointError

CONFIG = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"


def test_the_resolved_config_loads_from_its_folder_and_finds_the_same_files(tmp_path: Path) -> None:
    loaded = load_config(CONFIG, [f"run.dir={tmp_path}", "run.seed=7"])
    folder = create_run_dir(loaded)
    again = load_config(write_records(folder, loaded, [{"kind": "filters", "use": "x"}]))
    assert again.config.run.seed == 7
    assert again.resolve("model") == loaded.resolve("model")
    assert again.config.losses == loaded.config.losses
    assert create_run_dir(again).parent == folder.parent, "a repeated run lies beside the first"


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    loaded = load_config(CONFIG, [f"run.dir={tmp_path}", "run.id=a"])
    create_run_dir(loaded)
    with pytest.raises(CheckpointError, match="exists already"):
        create_run_dir(loaded)


def test_a_folder_that_cannot_be_made_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"run\.dir"):
        create_run_dir(load_config(CONFIG, [f"run.dir={tmp_path}/file/below"]))


def test_records_of_a_run_that_cannot_go_on_with_them_come_back(tmp_path: Path) -> None:
    before = load_config(CONFIG, [f"run.dir={tmp_path}", "run.id=a"])
    folder = create_run_dir(before)
    write_records(folder, before, [])
    text, modified = (folder / "config.toml").read_text(), (folder / "config.toml").stat().st_mtime_ns
    changed = load_config(CONFIG, [f"run.dir={tmp_path}", "run.seed=9"])
    with records_replaced(folder, changed, []):
        assert "seed = 9" in (folder / "config.toml").read_text()
    assert (folder / "config.toml").read_text() == text
    assert (folder / "config.toml").stat().st_mtime_ns == modified
    with records_replaced(folder, changed, []) as (config_file, keep):
        keep()
    assert "seed = 9" in config_file.read_text()
