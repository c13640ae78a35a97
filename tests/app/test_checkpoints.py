"""Which checkpoint a run resumes from: the newest whole one, and never an older one silently."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.app.checkpoints import find, set_aside_newer, verify
from miles_core.errors import CheckpointError
from miles_core.train.checkpoint import MANIFEST, write_checkpoint

OPTIMIZER = "state/optimizer.safetensors"


def save(run_dir: Path, step: int, *, rollout: bool = True) -> Path:
    def model(path: Path) -> None:
        (path / "state").mkdir()
        (path / "model.safetensors").write_bytes(b"weights")
        (path / OPTIMIZER).write_bytes(bytes(100))

    files = {"state/run.json": json.dumps({"step": step}).encode()}
    if rollout:
        files["state/rollout.npz"] = b"rollout"
    path = run_dir / "checkpoints" / f"step-{step}"
    write_checkpoint(path, model, files)
    return path


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with steps 0, 9 and 10."""
    for step in (0, 9, 10):
        save(tmp_path, step)
    return tmp_path


def test_the_newest_by_number_is_found_with_its_state(run_dir: Path) -> None:
    found = find(run_dir)
    assert (found.step, found.path) == (10, run_dir / "checkpoints" / "step-10")
    assert (found.run, found.rollout, found.warnings) == ({"step": 10}, b"rollout", ())
    assert find(run_dir, 9).step == 9
    save(run_dir, 11, rollout=False)
    assert find(run_dir).rollout is None


@pytest.mark.parametrize("name", ["model.safetensors", OPTIMIZER, "state/run.json", "state/rollout.npz", MANIFEST])
def test_a_cut_file_is_named_and_the_step_before_it_is_used_with_a_warning(run_dir: Path, name: str) -> None:
    file = run_dir / "checkpoints" / "step-10" / name
    cut(file)
    found = find(run_dir)
    assert found.step == 9
    assert len(found.warnings) == 1
    assert str(file) in found.warnings[0]
    assert found.warnings[0].endswith("going back to step 9")
    with pytest.raises(CheckpointError) as caught:
        find(run_dir, 10)
    assert str(file) in str(caught.value), "a step that was asked for is never replaced"


def test_sizes_say_what_was_written_and_what_is_there(run_dir: Path) -> None:
    cut(run_dir / "checkpoints" / "step-10" / OPTIMIZER)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has 50 bytes; 100 were written"):
        verify(run_dir / "checkpoints" / "step-10")


def test_a_missing_file_is_named(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-10" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"step-10/model\.safetensors is missing"):
        verify(run_dir / "checkpoints" / "step-10")


def test_going_back_to_the_first_step_names_every_newer_one(run_dir: Path) -> None:
    for step in (9, 10):
        cut(run_dir / "checkpoints" / f"step-{step}" / OPTIMIZER)
    found = find(run_dir)
    assert found.step == 0
    assert [f"step-{step}" in warning for step, warning in zip((10, 9), found.warnings, strict=True)] == [True, True]


def test_when_all_are_broken_the_error_names_each(run_dir: Path) -> None:
    for step in (0, 9, 10):
        cut(run_dir / "checkpoints" / f"step-{step}" / OPTIMIZER)
    with pytest.raises(CheckpointError, match=r"step-10/.*step-9/.*step-0/"):
        find(run_dir)


def test_what_is_no_checkpoint_is_not_taken_for_one(run_dir: Path) -> None:
    for name in (".step-12.partial", ".step-13.removed", "step-14.old", "step-x"):
        (run_dir / "checkpoints" / name).mkdir()
    (run_dir / "checkpoints" / "step-15").write_text("a file")
    assert find(run_dir).step == 10
    assert find(run_dir).warnings == ()


def test_a_run_without_checkpoints_and_a_step_that_is_missing_are_errors(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        find(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no step-20 in .*; there are: 0, 9, 10"):
        find(run_dir, 20)


def test_a_folder_with_a_model_alone_can_begin_a_new_run(tmp_path: Path) -> None:
    """What versions before resume wrote."""
    old = tmp_path / "checkpoints" / "step-4"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"weights")
    for step in (None, 4):
        with pytest.raises(CheckpointError, match=rf'no state.*\n.*model\.path = "{old}"'):
            find(tmp_path, step)


def test_a_newer_format_is_never_passed_over(run_dir: Path) -> None:
    manifest = run_dir / "checkpoints" / "step-10" / MANIFEST
    manifest.write_text(json.dumps({"format": 2, "parts": []}))
    for step in (None, 10):
        with pytest.raises(CheckpointError, match=r"format 2; this version .* up to 1\n.*Upgrade"):
            find(run_dir, step)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "files": 3}', '{"format": "new"}'])
def test_a_manifest_that_is_none_is_a_broken_checkpoint(run_dir: Path, text: str) -> None:
    (run_dir / "checkpoints" / "step-10" / MANIFEST).write_text(text)
    assert find(run_dir).step == 9


def test_newer_checkpoints_are_set_aside_so_that_their_steps_can_be_written_again(run_dir: Path) -> None:
    cut(run_dir / "checkpoints" / "step-10" / OPTIMIZER)
    folder = run_dir / "checkpoints"
    assert set_aside_newer(run_dir, find(run_dir).step) == [folder / "step-10.old"]
    save(run_dir, 10)
    assert find(run_dir).step == 10
    assert set_aside_newer(run_dir, 0) == [folder / "step-9.old", folder / "step-10.old1"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-0", "step-10.old", "step-10.old1", "step-9.old"]


def test_reading_needs_no_torch() -> None:
    script = "import sys, miles_core.app.checkpoints; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
