"""The highest version that engines may have heard of is on the disk before they hear of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from miles_core.app.run_state import RunState
from miles_core.app.version_mark import VersionMark
from miles_core.errors import CheckpointError


def test_a_run_that_told_no_engine_has_no_mark(tmp_path: Path) -> None:
    assert VersionMark(tmp_path).read() is None


def test_the_mark_only_grows_over_restarts(tmp_path: Path) -> None:
    VersionMark(tmp_path).raise_to(7)
    again = VersionMark(tmp_path)
    again.raise_to(3)
    assert again.read() == 7
    again.raise_to(8)
    assert VersionMark(tmp_path).read() == 8
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version"]


def test_a_version_that_is_noted_is_not_written_again(tmp_path: Path) -> None:
    mark = VersionMark(tmp_path)
    mark.raise_to(4)
    before = (tmp_path / "weights" / "version").stat().st_ino
    mark.raise_to(4)
    assert (tmp_path / "weights" / "version").stat().st_ino == before


def test_it_is_on_the_disk_before_it_is_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VersionMark(tmp_path).raise_to(1)
    synced: list[str] = []
    real, path = os.fsync, tmp_path / "weights" / "version"
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.read_text()), real(descriptor)))
    VersionMark(tmp_path).raise_to(2)
    assert synced == ["1\n", "2\n"], "the file before it took the name, the folder after"


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5"])
def test_a_damaged_mark_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "version").write_text(text)
    for call in (VersionMark(tmp_path).read, lambda: VersionMark(tmp_path).raise_to(3)):
        with pytest.raises(CheckpointError, match="must hold a policy version"):
            call()
    assert (tmp_path / "weights" / "version").read_text() == text


def test_a_mark_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("no folder")
    with pytest.raises(CheckpointError, match="must hold a policy version|cannot be noted"):
        VersionMark(tmp_path).raise_to(1)


def test_a_resumed_run_calls_its_weights_by_a_number_that_no_engine_has_heard() -> None:
    state = RunState(step=4, version=3)
    state.go_past(5)
    assert (state.version, state.updates) == (6, 3)
    assert state.skipped.updates(3, 6) == 0
    state.go_past(5)
    assert state.version == 6


@pytest.mark.parametrize("mark", [None, 2, 3])
def test_a_run_whose_checkpoint_knows_the_last_version_goes_on_with_its_number(mark: int | None) -> None:
    state = RunState(step=4, version=3)
    state.go_past(mark)
    assert state == RunState(step=4, version=3)


def test_skipped_versions_are_part_of_a_checkpoint_and_older_ones_have_none() -> None:
    state = RunState(step=4, version=3)
    state.go_past(5)
    assert RunState.from_json(state.to_json()) == state
    old = state.to_json()
    del old["skipped"]
    assert RunState.from_json(old).updates == 6
