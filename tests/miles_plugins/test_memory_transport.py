from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.api import Bucket, PluginContext, WeightSyncError, WeightTransport
from miles_plugins.transports.memory import Memory

SHARED = Path("/dev/shm")
DATA = bytes(range(256)) * 40
BUCKET = Bucket(0, (), len(DATA))


@pytest.fixture
def sender():
    transport = Memory(None, PluginContext())
    yield transport
    transport.close()


@pytest.fixture
def receiver():
    return Memory(None, PluginContext())


def test_bytes_arrive_whole_and_the_segment_goes_on_release(sender, receiver):
    assert isinstance(sender, WeightTransport)
    delivery = sender.send(BUCKET, memoryview(DATA))
    data = receiver.receive(delivery, BUCKET)
    assert data == DATA
    sender.release(delivery)
    assert not (SHARED / delivery["segment"]).exists()
    assert data == DATA  # the mapping outlives the name


def test_receiver_cannot_change_what_others_receive(sender, receiver):
    delivery = sender.send(BUCKET, memoryview(DATA))
    receiver.receive(delivery, BUCKET)[0] = 99
    assert receiver.receive(delivery, BUCKET) == DATA


def test_close_removes_what_was_not_released(sender):
    names = [sender.send(BUCKET, memoryview(DATA))["segment"] for _ in range(2)]
    sender.close()
    assert not [name for name in names if (SHARED / name).exists()]


@pytest.mark.parametrize("name", ["psm_1234", "../shm/miles-weights-0123456789abcdef", "miles-weights-xyz", None, 7])
def test_foreign_names_are_refused(receiver, name):
    with pytest.raises(WeightSyncError, match="a delivery must name a segment miles-weights-"):
        receiver.receive({"segment": name, "nbytes": len(DATA)}, BUCKET)


def test_absent_segment_names_the_remedy(receiver):
    delivery = {"segment": "miles-weights-0123456789abcdef", "nbytes": len(DATA)}
    with pytest.raises(WeightSyncError, match=r"cannot be opened: .*No such file") as caught:
        receiver.receive(delivery, BUCKET)
    assert "on one host" in caught.value.remedy


def test_sizes_that_disagree_are_refused(sender, receiver):
    with pytest.raises(WeightSyncError, match="bucket 0 has 10240 bytes; its payload 5"):
        sender.send(BUCKET, memoryview(b"12345"))
    delivery = sender.send(BUCKET, memoryview(DATA))
    other = Bucket(0, (), 5)
    with pytest.raises(WeightSyncError, match="bucket 0 has 5 bytes; its delivery says 10240"):
        receiver.receive(delivery, other)
    with pytest.raises(WeightSyncError, match=r"bucket 0 has 5 bytes; segment miles-weights-\w+ holds 10240"):
        receiver.receive({**delivery, "nbytes": 5}, other)


def test_what_was_not_sent_or_is_already_released_cannot_be_released(sender, receiver):
    delivery = sender.send(BUCKET, memoryview(DATA))
    with pytest.raises(WeightSyncError, match="holds no segment"):
        receiver.release(delivery)
    sender.release(delivery)
    with pytest.raises(WeightSyncError, match="holds no segment"):
        sender.release(delivery)


def test_full_shared_memory_is_an_error_with_its_remedy_and_leaves_nothing(sender):
    size = 1 << 44  # more than any /dev/shm
    before = set(SHARED.iterdir())
    # Without access rights, so that a transport that starts to copy dies at once instead of filling the host's memory.
    payload = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    with pytest.raises(WeightSyncError, match=f"needs {size} bytes of shared memory in /dev/shm: .*No space") as caught:
        sender.send(Bucket(0, (), size), memoryview(payload))
    assert "--shm-size" in caught.value.remedy
    assert not [path for path in set(SHARED.iterdir()) - before if path.name.startswith("miles-weights-")]


PROCESS = """
import sys
from miles_core.api import Bucket, PluginContext
from miles_plugins.transports.memory import Memory
transport = Memory(None, PluginContext())
size = int(sys.argv[2])
{body}
"""


def run(body, *arguments):
    code = PROCESS.format(body=body)
    return subprocess.run([sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, check=True)


def test_unrelated_receiver_neither_removes_the_segment_nor_warns(sender):
    delivery = sender.send(BUCKET, memoryview(DATA))
    body = """
data = transport.receive({"segment": sys.argv[1], "nbytes": size}, Bucket(0, (), size))
sys.stdout.buffer.write(data)
"""
    done = run(body, delivery["segment"], str(len(DATA)))
    assert (done.stdout, done.stderr) == (DATA, b"")
    assert (SHARED / delivery["segment"]).exists()


def test_sender_that_closes_leaves_no_segment_and_no_warning():
    body = "print(transport.send(Bucket(0, (), size), memoryview(bytes(size)))['segment'], flush=True)"
    done = run(body + "\ntransport.close()", "", "100")
    assert done.stderr == b""
    assert not (SHARED / done.stdout.decode().strip()).exists()


def test_segments_are_private_to_the_user(sender):
    delivery = sender.send(BUCKET, memoryview(DATA))
    assert (SHARED / delivery["segment"]).stat().st_mode & 0o777 == 0o600
