"""The disk transport: files that SGLang can load, room, damage, and what is left when a process ends or is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from miles_core.api import Bucket, Placement, PluginContext, TensorSpec, WeightSyncError, WeightTransport
from miles_core.weights import bucket_file
from miles_plugins.transports import shared_folder as module
from miles_plugins.transports.disk import Disk

DATA = bytes(range(256)) * 4
PLACEMENTS = tuple(
    Placement(spec, spec.whole, spec.name, 0)
    for spec in (TensorSpec("a.weight", "float32", (5, 32)), TensorSpec("b.bias", "bfloat16", (192,)))
)
BUCKET = Bucket(3, PLACEMENTS, len(DATA))


def held():
    raise AssertionError("files hold whole buckets: what the engine holds is not asked for")


@pytest.fixture
def make(tmp_path):
    """Makes a transport that writes below ``tmp_path``."""
    made = []

    def make(**options):
        made.append(Disk(Disk.Config(**{"dir": str(tmp_path / "weights"), **options}), PluginContext(run_dir=tmp_path)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def left_in(path):
    return list((path / "weights").iterdir())


def test_bytes_arrive_whole_and_the_file_goes_on_release(make, tmp_path):
    sender, receiver = make(), make()
    assert isinstance(sender, WeightTransport)
    delivery = sender.send(BUCKET, memoryview(DATA))
    data = receiver.receive(delivery, BUCKET, held)
    assert data == DATA
    sender.release(delivery)
    assert left_in(tmp_path) == []
    assert data == DATA


def test_the_file_is_one_that_safetensors_loads(make):
    tensors = load_file(make().send(BUCKET, memoryview(DATA))["file"])
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    assert found == {"a.weight": (torch.float32, (5, 32)), "b.bias": (torch.bfloat16, (192,))}
    assert b"".join(tensors[name].view(torch.uint8).numpy().tobytes() for name in sorted(found)) == DATA


def test_files_held_together_share_a_folder_and_later_ones_get_another(make):
    sender = make()
    pair = [sender.send(Bucket(index, PLACEMENTS, len(DATA)), memoryview(DATA)) for index in (0, 1)]
    folders = {Path(delivery["file"]).parent for delivery in pair}
    assert len(folders) == 1
    (folder,) = folders
    folder.joinpath("model.safetensors.index.json").write_text("{}")  # as the driver adds it
    for delivery in pair:
        sender.release(delivery)
    assert not folder.exists()
    assert Path(sender.send(BUCKET, memoryview(DATA))["file"]).parent != folder


def test_a_bucket_that_is_held_is_not_written_over(make):
    sender = make()
    delivery = sender.send(BUCKET, memoryview(DATA))
    with pytest.raises(WeightSyncError, match="bucket 3 was sent before and is not released"):
        sender.send(BUCKET, memoryview(bytes(len(DATA))))
    assert make().receive(delivery, BUCKET, held) == DATA


def test_a_payload_of_another_size_is_refused_and_leaves_nothing(make, tmp_path):
    with pytest.raises(WeightSyncError, match="bucket 3 has 1024 bytes; its payload 1"):
        make().send(BUCKET, memoryview(b"x"))
    assert left_in(tmp_path) == []


def test_a_type_without_a_name_in_safetensors_is_refused(make, monkeypatch):
    monkeypatch.delitem(bucket_file.DTYPES, "bfloat16")
    with pytest.raises(WeightSyncError, match="tensor b.bias of type bfloat16 cannot be written to a safetensors file"):
        make().send(BUCKET, memoryview(DATA))


def test_a_model_that_does_not_fit_is_refused_before_the_first_file(make, tmp_path):
    sender = make()
    sender.expect(1 << 60)
    with pytest.raises(WeightSyncError, match=rf"an update of {1 << 60} bytes does not fit .*weights.* are free"):
        sender.send(BUCKET, memoryview(DATA))
    assert left_in(tmp_path) == []


def test_a_disk_that_fills_up_meanwhile_leaves_no_file_that_looks_whole(make, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightSyncError, match="bucket 3 of 1024 bytes cannot be written: .*No space left") as caught:
        make().send(BUCKET, memoryview(DATA))
    assert "Free space" in caught.value.remedy
    assert left_in(tmp_path) == []


def test_shared_memory_is_used_where_the_model_fits_twice_and_else_the_runs_folder(make, tmp_path, monkeypatch):
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(module, "SHARED_MEMORY", shared)
    monkeypatch.setattr(module, "_memory_room", lambda: 2048)
    for nbytes, expected in [(1024, shared), (1025, tmp_path / "weights")]:
        sender = make(dir=None)
        sender.expect(nbytes)
        assert expected in Path(sender.send(BUCKET, memoryview(DATA))["file"]).parents


def test_a_relative_dir_counts_from_the_config_file(tmp_path):
    sender = Disk(Disk.Config(dir="w"), PluginContext(services={"base_dir": tmp_path}))
    assert tmp_path / "w" in Path(sender.send(BUCKET, memoryview(DATA))["file"]).parents
    sender.close()


@pytest.mark.parametrize("file", ["/etc/passwd", "bucket-00000.safetensors", None, 7])
def test_foreign_files_are_refused(make, file):
    with pytest.raises(WeightSyncError, match="a delivery must name a file"):
        make().receive({"file": file, "nbytes": len(DATA)}, BUCKET, held)


def test_a_cut_or_absent_or_other_file_is_refused(make):
    sender, receiver = make(), make()
    delivery = sender.send(BUCKET, memoryview(DATA))
    with pytest.raises(WeightSyncError, match="does not begin with the header of bucket 3"):
        receiver.receive(delivery, Bucket(3, PLACEMENTS[::-1], len(DATA)), held)
    os.truncate(delivery["file"], 700)
    with pytest.raises(WeightSyncError, match="must have .* bytes to hold bucket 3; it has 700"):
        receiver.receive(delivery, BUCKET, held)
    Path(delivery["file"]).unlink()
    with pytest.raises(WeightSyncError, match="bucket 3 cannot be read: .*No such file") as caught:
        receiver.receive(delivery, BUCKET, held)
    assert "share" in caught.value.remedy
    sender.release(delivery)  # what vanished can still be released


def test_only_its_own_deliveries_can_be_released(make):
    with pytest.raises(WeightSyncError, match="holds no file '/x' to release"):
        make().release({"file": "/x"})


def test_close_removes_what_was_not_released(make, tmp_path):
    sender = make()
    sender.send(BUCKET, memoryview(DATA))
    sender.close()
    assert left_in(tmp_path) == []


SENDER = textwrap.dedent("""
    import os, signal, sys
    from miles_core.api import Bucket, PluginContext
    from miles_plugins.transports.disk import Disk
    transport = Disk(Disk.Config(dir=sys.argv[1]), PluginContext())
    transport.send(Bucket(0, (), 5), memoryview(b"bytes"))
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
""")


def test_the_end_of_a_process_removes_its_files(tmp_path):
    subprocess.run([sys.executable, "-c", SENDER, tmp_path, "ended"], check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_next_sender_removes_what_a_killed_one_left_and_nothing_that_lives(make, tmp_path):
    weights = tmp_path / "weights"
    process = subprocess.run([sys.executable, "-c", SENDER, weights, "killed"], check=False)
    assert process.returncode == -9
    left = {path.name for path in weights.iterdir()}
    assert len(left) == 2
    living, other = make(), make()
    delivery = living.send(BUCKET, memoryview(DATA))
    other.send(BUCKET, memoryview(DATA))
    assert not left & {path.name for path in weights.iterdir()}
    assert other.receive(delivery, BUCKET, held) == DATA


def test_the_driver_reads_such_files_without_torch():
    code = "import sys, miles_core.weights.staged_files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
