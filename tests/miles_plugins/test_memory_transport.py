from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.api import Bucket, PluginContext, WeightSyncError, WeightTransport
from miles_plugins.transports.memory import KEPT, Memory

SHARED = Path("/dev/shm")
DATA = bytes(range(256)) * 40
BUCKET = Bucket(0, (), len(DATA))


def segments():
    return set(SHARED.glob("miles-weights-*"))


@pytest.fixture
def sender():
    transport = Memory(None, PluginContext())
    yield transport
    transport.close()


@pytest.fixture
def receiver():
    return Memory(None, PluginContext())


def receive(transport, delivery, bucket=BUCKET):
    def unused():
        raise AssertionError("the transport has no need of what the parameters hold")

    return transport.receive(delivery, bucket, unused)


def test_bytes_arrive_whole(sender, receiver):
    assert isinstance(sender, WeightTransport)
    delivery = sender.send(BUCKET, memoryview(DATA))
    assert json.loads(json.dumps(delivery)) == delivery
    assert receive(receiver, delivery) == DATA
    assert receive(receiver, delivery) == DATA, "several receivers of one host fetch the same segment"


def test_what_is_packed_into_lent_memory_is_sent_without_a_copy(sender, receiver):
    payload = sender.buffer(BUCKET)
    assert payload.nbytes == BUCKET.nbytes
    payload[:] = DATA
    delivery = sender.send(BUCKET, payload)
    assert receive(receiver, delivery) == DATA
    payload[0] = 99
    assert receive(receiver, delivery)[0] == 99


def test_lent_memory_that_is_never_sent_is_lent_again(sender):
    before = segments()
    for _ in range(3):
        sender.buffer(BUCKET)[:] = DATA
    assert len(segments() - before) == 1


def test_a_released_segment_serves_later_buckets_of_its_size_or_less(sender, receiver):
    first = sender.send(BUCKET, memoryview(DATA))
    sender.release(first)
    small = Bucket(1, (), 100)
    second = sender.send(small, memoryview(bytes(100)))
    assert second["segment"] == first["segment"]
    assert receive(receiver, second, small) == bytes(100)
    third = sender.send(BUCKET, memoryview(DATA))
    assert third["segment"] != second["segment"], "what is not released is not overwritten"
    assert receive(receiver, second, small) == bytes(100)
    assert receive(receiver, third) == DATA


def test_no_more_than_a_few_free_segments_are_kept(sender):
    before = segments()
    deliveries = [sender.send(BUCKET, memoryview(DATA)) for _ in range(2 * KEPT)]
    assert len(segments() - before) == 2 * KEPT
    for delivery in deliveries:
        sender.release(delivery)
    assert len(segments() - before) == KEPT


def test_segments_that_are_too_small_make_room_for_one_that_fits(sender, receiver):
    before = segments()
    sender.release(sender.send(Bucket(0, (), 10), memoryview(bytes(10))))
    delivery = sender.send(BUCKET, memoryview(DATA))
    assert segments() - before == {SHARED / delivery["segment"]}
    assert receive(receiver, delivery) == DATA


def test_a_payload_that_is_not_the_lent_memory_is_copied_whatever_was_lent(sender, receiver):
    before = segments()
    sender.buffer(BUCKET)[:] = bytes(len(DATA))
    delivery = sender.send(BUCKET, memoryview(bytearray(DATA)))
    assert receive(receiver, delivery) == DATA
    assert len(segments() - before) == 1, "what was lent served for the copy"
    floats = memoryview(DATA).cast("f")
    assert receive(receiver, sender.send(BUCKET, floats)) == DATA


def send(sender, bucket, data, lent):
    payload = sender.buffer(bucket) if lent else memoryview(bytearray(bucket.nbytes))
    payload[:] = data
    return sender.send(bucket, payload)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5), st.booleans()), max_size=30))
@settings(max_examples=60, deadline=None)
def test_no_delivery_is_overwritten_before_its_release(steps):
    """Each step sends so many bytes, packed into lent memory or not, and may release one of the oldest."""
    sender, receiver, held = Memory(None, PluginContext()), Memory(None, PluginContext()), []
    try:
        for number, (nbytes, oldest, lent) in enumerate(steps):
            bucket, data = Bucket(number, (), nbytes), bytes([number + 1]) * nbytes
            held.append((bucket, send(sender, bucket, data, lent), data))
            for one, delivery, expected in held:
                assert receive(receiver, delivery, one) == expected
            if oldest < len(held):
                sender.release(held.pop(oldest)[1])
    finally:
        receiver.close()
        sender.close()


def mappings():
    return Path("/proc/self/maps").read_text().count("miles-weights-")


def test_a_receiver_keeps_few_mappings_and_those_whose_bytes_are_in_use(sender, receiver):
    deliveries = [sender.send(BUCKET, memoryview(bytes([number]) * len(DATA))) for number in range(3 * KEPT)]
    before = mappings()
    in_use = receive(receiver, deliveries[0])
    for delivery in deliveries[1:]:
        receive(receiver, delivery)
    assert mappings() - before == KEPT + 1
    assert in_use == bytes(len(DATA))
    del in_use
    assert mappings() - before == KEPT
    receiver.close()
    assert mappings() == before


def test_a_receiver_sees_what_a_reused_segment_holds_now(sender, receiver):
    delivery = sender.send(BUCKET, memoryview(DATA))
    assert receive(receiver, delivery) == DATA
    sender.release(delivery)
    again = sender.send(BUCKET, memoryview(DATA[::-1]))
    assert again["segment"] == delivery["segment"]
    assert receive(receiver, again) == DATA[::-1], "an old mapping shows what lies there now"
    larger = Bucket(1, (), 2 * len(DATA))
    sender.release(again)
    other = sender.send(larger, memoryview(DATA * 2))
    assert other["segment"] != again["segment"]
    assert receive(receiver, other, larger) == DATA * 2


def test_close_removes_what_was_not_released(sender):
    deliveries = [sender.send(BUCKET, memoryview(DATA)) for _ in range(3)]
    sender.release(deliveries[0])
    sender.buffer(Bucket(0, (), 2 * len(DATA)))
    names = [delivery["segment"] for delivery in deliveries]
    sender.close()
    assert not [name for name in names if (SHARED / name).exists()]


@pytest.mark.parametrize("name", ["psm_1234", "../shm/miles-weights-0123456789abcdef", "miles-weights-xyz", None, 7])
def test_foreign_names_are_refused(receiver, name):
    with pytest.raises(WeightSyncError, match="a delivery must name a segment miles-weights-"):
        receive(receiver, {"segment": name, "nbytes": len(DATA), "size": len(DATA)})


def test_absent_segment_names_the_remedy(receiver):
    delivery = {"segment": "miles-weights-0123456789abcdef", "nbytes": len(DATA), "size": len(DATA)}
    with pytest.raises(WeightSyncError, match=r"cannot be opened: .*No such file") as caught:
        receive(receiver, delivery)
    assert "on one host" in caught.value.remedy


def test_sizes_that_disagree_are_refused(sender, receiver):
    with pytest.raises(WeightSyncError, match="bucket 0 has 10240 bytes; its payload 5"):
        sender.send(BUCKET, memoryview(b"12345"))
    delivery = sender.send(BUCKET, memoryview(DATA))
    other = Bucket(0, (), 5)
    with pytest.raises(WeightSyncError, match="bucket 0 has 5 bytes; its delivery says 10240 of 10240"):
        receive(receiver, delivery, other)
    for size in (4, "10240", None, 0):
        with pytest.raises(WeightSyncError, match="bucket 0 has 10240 bytes; its delivery says 10240 of"):
            receive(receiver, {**delivery, "size": size})
    with pytest.raises(WeightSyncError, match=r"segment miles-weights-\w+ of bucket 0 must have 99999 bytes; it has"):
        receive(receiver, {**delivery, "size": 99999})


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
data = transport.receive({"segment": sys.argv[1], "nbytes": size, "size": size}, Bucket(0, (), size), bytearray)
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
