"""Writing checkpoints: whole or absent, whatever happens in the middle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import pytest

from miles_core.app.checkpoints import find, verify
from miles_core.errors import CheckpointError
from miles_core.train.checkpoint import MANIFEST, steps_in, write_checkpoint

FILES = {"state/run.json": b'{"step": 1}', "state/rollout.npz": b"rollout"}
ROOT = Path(__file__).parents[2]


def write_model(path: Path) -> None:
    (path / "state").mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "state" / "optimizer.safetensors").write_bytes(b"moments")


def contents(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_the_manifest_holds_the_size_of_every_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoints" / "step-1", write_model, FILES)
    written = contents(tmp_path / "checkpoints" / "step-1")
    manifest = json.loads(written.pop(MANIFEST))
    assert manifest == {"format": 1, "files": {name: len(content) for name, content in written.items()}}
    assert written == {"model.safetensors": b"weights", "state/optimizer.safetensors": b"moments", **FILES}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1", write_model, FILES)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="exists already"):
        write_checkpoint(tmp_path / "step-1", write_model, {})
    assert contents(tmp_path) == before


def test_the_manifest_comes_last_and_the_name_after_every_file_and_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a folder keeps only the names that were there when it was synced."""
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((str(path.relative_to(tmp_path)), (tmp_path / "step-1").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    write_checkpoint(tmp_path / "step-1", write_model, FILES)
    names = [name for name, _ in synced]
    files = [f".step-1.partial/{name}" for name in contents(tmp_path / "step-1")]
    assert sorted(names[: len(files)]) == sorted(files)
    assert synced[len(files) :] == [(".step-1.partial/state", False), (".step-1.partial", False), (".", True)]


def test_an_error_of_the_model_removes_what_was_written_and_stays_itself(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1", write_model, FILES)

    def fail(path: Path) -> None:
        write_model(path)
        raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        write_checkpoint(tmp_path / "step-2", fail, FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    verify(tmp_path / "step-1")


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in (".step-2.partial", ".step-1.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    write_checkpoint(tmp_path / "step-4", write_model, FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [0, 2, 4, 6, 10]), (1, [0, 10]), (2, [0, 6, 10]), (9, [0, 2, 4, 6, 10])]
)
def test_the_newest_stay_and_the_first_always_does(tmp_path: Path, keep: int, left: list[int]) -> None:
    (tmp_path / "step-3.old").mkdir()
    for step in (0, 2, 4, 6):
        write_checkpoint(tmp_path / f"step-{step}", write_model, FILES)
    write_checkpoint(tmp_path / "step-10", write_model, FILES, keep=keep)
    assert list(steps_in(tmp_path)) == left
    assert {path.name for path in tmp_path.iterdir()} == {"step-3.old", *(f"step-{step}" for step in left)}


def test_a_failed_save_deletes_no_older_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path / f"step-{step}", write_model, FILES)

    def fail(path: Path) -> None:
        raise OSError("broken disk")

    with pytest.raises(CheckpointError, match="broken disk"):
        write_checkpoint(tmp_path / "step-3", fail, FILES, keep=1)
    assert list(steps_in(tmp_path)) == [1, 2]


def test_too_little_room_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, 0, 100 << 20))
    write_checkpoint(tmp_path / "step-1", write_model, FILES, nbytes=80 << 20)
    called = []
    with pytest.raises(CheckpointError, match=r"needs about 118 MiB and the disk has 100 MiB left\n.*Free space"):
        write_checkpoint(tmp_path / "step-2", called.append, FILES, nbytes=100 << 20)
    assert not called
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


FULL_DISK = """
    mount -t tmpfs -o size=1m tmpfs {folder} && exec {python} -c '
    from pathlib import Path
    from miles_core.app.checkpoints import verify
    from miles_core.errors import CheckpointError
    from miles_core.train.checkpoint import write_checkpoint
    folder = Path("{folder}")
    def model(kib):
        return lambda path: (path / "model.safetensors").write_bytes(bytes(kib << 10))
    write_checkpoint(folder / "step-1", model(400), {{"state/run.json": b"{{}}"}})
    for size in (900, 590):
        try:
            write_checkpoint(folder / "step-2", model(size), {{"state/rollout.npz": bytes(100_000)}})
        except CheckpointError as error:
            print(error)
    print([path.name for path in folder.iterdir()])
    verify(folder / "step-1")
    write_checkpoint(folder / "step-3", model(500), {{}})
    verify(folder / "step-3")'
"""


def test_a_full_disk_removes_the_half_checkpoint_and_harms_no_other(tmp_path: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = subprocess.run(
        [*namespace, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if probe.returncode:
        assert not os.environ.get("CI"), probe.stderr
        pytest.skip("needs user namespaces with mounts of their own")
    script = textwrap.dedent(FULL_DISK.format(folder=tmp_path, python=sys.executable))
    done = subprocess.run([*namespace, "sh", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("No space left on device") == 2, "in the model's file, and in a later one"
    assert done.stdout.count("Free space on the disk") == 2
    assert done.stdout.endswith("['step-1']\n")


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from miles_core.train.checkpoint import write_checkpoint
    folder, steps, calls = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    def die(name, args):
        global calls
        if name in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and str(folder) in str(args[0]):
            calls -= 1
            if calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    def model(path):
        (path / "model.safetensors").write_bytes(bytes(1 << 20))
    sys.addaudithook(die)
    for step in range(1, steps + 1):
        write_checkpoint(folder / f"step-{step}", model, {"state/run.json": b"{}"}, keep=2)
"""


def saving(folder: Path, steps: int, kill_at: int = 0) -> subprocess.Popen[bytes]:
    """A process that saves; it kills itself before its ``kill_at``-th access to a file."""
    script = textwrap.dedent(KILLED)
    return subprocess.Popen([sys.executable, "-c", script, str(folder), str(steps), str(kill_at)], cwd=ROOT)


def check_whole(folder: Path) -> list[int]:
    steps = steps_in(folder)
    for path in steps.values():
        verify(path)
    return list(steps)


def test_a_kill_before_any_access_to_a_file_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """Three saves that begin with what a killed one left; with keep = 2 the last one deletes a checkpoint too."""
    survivors = set()
    for kill_at in range(1, 1000):
        folder = tmp_path / f"killed-{kill_at}" / "checkpoints"
        write_checkpoint(folder / "step-0", write_model, FILES)
        (folder / ".step-1.partial").mkdir()
        code = saving(folder, 3, kill_at).wait()
        survivors.add(tuple(check_whole(folder)))
        assert find(folder.parent).step == max(steps_in(folder))
        if code == 0:
            break
        assert code == -9
    assert survivors == {(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 2, 3)}


def test_a_kill_at_any_moment_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    for round_ in range(8):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        process = saving(folder, 100_000)
        deadline = 1 + 7 * round_  # accesses seen from outside: the moment differs from round to round
        seen = 0
        while seen < deadline:
            seen += any(folder.iterdir())
        process.kill()
        assert process.wait() == -9
        check_whole(folder)
        before = max(steps_in(folder), default=0)
        write_checkpoint(folder / f"step-{before + 1}", write_model, FILES, keep=1)
        assert [path.name for path in folder.iterdir()] == [f"step-{before + 1}"]
