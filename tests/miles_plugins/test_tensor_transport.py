from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from miles_core.api import Bucket, Opening, Placement, PluginContext, TensorSpec, WeightSyncError, WeightTransport
from miles_plugins.transports.tensor import Tensor

SHARED = Path("/dev/shm")
TENSORS = {
    "wide": torch.arange(6, dtype=torch.float64).view(2, 3),
    "half": torch.arange(4, dtype=torch.bfloat16),
    "none": torch.empty(0, 3, dtype=torch.bfloat16),
    "bytes": torch.arange(5, dtype=torch.uint8),
}
READ = """
import base64, pickle, sys, torch
for name, tensor in pickle.loads(base64.b64decode(sys.stdin.read())):
    print(name, tensor.dtype, list(tensor.shape), tensor.flatten().tolist())
"""


def bucket_of(tensors, region=None):
    specs = [TensorSpec(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in tensors.items()]
    placements = tuple(Placement(spec, region or spec.whole, spec.name, 0) for spec in specs)
    return Bucket(0, placements, sum(placement.nbytes for placement in placements))


def payload_of(tensors):
    return memoryview(
        bytearray(b"".join(one.flatten().view(torch.uint8).numpy().tobytes() for one in tensors.values()))
    )


BUCKET, PAYLOAD = bucket_of(TENSORS), payload_of(TENSORS)


def read(text):
    """What another process unpickles, in its words."""
    return subprocess.run([sys.executable, "-c", READ], input=text, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def sender():
    transport = Tensor(None, PluginContext())
    yield transport
    transport.close()


def opened(sender, readers):
    sender.open(Opening(1, group={"readers": readers}))
    return sender


def test_every_reader_gets_names_types_shapes_and_bytes(sender):
    assert isinstance(sender, WeightTransport)
    delivery = opened(sender, 2).send(BUCKET, PAYLOAD)
    expected = "".join(f"{n} {t.dtype} {list(t.shape)} {t.flatten().tolist()}\n" for n, t in TENSORS.items())
    assert read(delivery["serialized"]) == expected
    assert read(delivery["serialized"]) == expected
    assert (SHARED / delivery["tensors"]).exists()
    sender.release(delivery)
    assert not (SHARED / delivery["tensors"]).exists()


def test_memory_goes_although_a_reader_never_came(sender):
    delivery = opened(sender, 3).send(BUCKET, PAYLOAD)
    read(delivery["serialized"])
    sender.release(delivery)
    assert not (SHARED / delivery["tensors"]).exists()


def test_what_was_sent_does_not_change_with_the_payload(sender):
    payload = payload_of(TENSORS)
    delivery = opened(sender, 1).send(BUCKET, payload)
    payload[:] = bytes(len(payload))
    assert "5.0" in read(delivery["serialized"])


def test_close_frees_what_was_not_released(sender):
    opened(sender, 1)
    names = [sender.send(BUCKET, PAYLOAD)["tensors"] for _ in range(2)]
    sender.close()
    assert not [name for name in names if (SHARED / name).exists()]


def test_the_setting_that_the_process_shares_stays(sender):
    before = torch.multiprocessing.get_sharing_strategy()
    opened(sender, 1).send(BUCKET, PAYLOAD)
    assert torch.multiprocessing.get_sharing_strategy() == before != "file_system"


def test_nothing_is_sent_before_an_engine_is_known(sender):
    with pytest.raises(WeightSyncError, match="must be opened for at least one engine"):
        sender.send(BUCKET, PAYLOAD)


def test_a_part_of_a_tensor_is_refused(sender):
    part = bucket_of({"wide": TENSORS["wide"]}, region=((0, 1), (0, 3)))
    with pytest.raises(WeightSyncError, match=r"whole tensors; bucket 0 holds wide\[0:1, 0:3\]"):
        opened(sender, 1).send(part, memoryview(bytearray(part.nbytes)))


def test_a_payload_of_another_size_is_refused(sender):
    with pytest.raises(WeightSyncError, match="has 61 bytes; its payload 3"):
        opened(sender, 1).send(BUCKET, memoryview(bytearray(3)))


def test_a_delivery_is_released_once(sender):
    delivery = opened(sender, 1).send(BUCKET, PAYLOAD)
    sender.release(delivery)
    with pytest.raises(WeightSyncError, match="holds no tensors"):
        sender.release(delivery)


def test_more_than_shared_memory_holds_is_an_error_with_a_remedy(sender):
    size = 1 << 50
    bucket = Bucket(0, (), size)

    class Huge:
        nbytes = size

        def cast(self, _):
            return self

    with pytest.raises(WeightSyncError, match="needs .* bytes of shared memory") as caught:
        opened(sender, 1).send(bucket, Huge())
    assert "shm-size" in (caught.value.remedy or "")


def test_our_servers_take_none(sender):
    with pytest.raises(WeightSyncError, match="no pickled tensors"):
        sender.receive({}, BUCKET, bytearray)
