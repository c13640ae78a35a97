"""The trainer's end: boxes become bytes in the order of a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket, Layout, Opening, Placement, TensorSpec
from miles_core.weights.plan import Receiver, make_plan
from miles_core.weights.source import WeightSource


def source_of_one(tensor, transport, spec=None):
    spec = spec or TensorSpec("w", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    layout = Layout((Placement(spec, spec.whole, "p", 0),))
    source = WeightSource(layout, lambda: {"p": tensor}, lambda name: transport)
    source.open("memory", Opening(1))
    return source


def bucket_of(dtype, shape, region):
    placement = Placement(TensorSpec("w", dtype, shape), region, "elsewhere", 0)
    return Bucket(0, (placement,), placement.nbytes)


def unused():
    raise AssertionError


def test_bucket_holds_the_cast_tensors_back_to_back(tiny, memory, source_of, layout_of):
    trained = tiny()
    source = source_of(trained, memory)
    source.open("memory", Opening(1))
    plan = make_plan(source.layout, {Receiver("http://e"): layout_of(tiny(dtype=torch.bfloat16))}, 2000)
    saved = trained.state_dict()
    stacked = {"gate_proj": slice(0, 8), "up_proj": slice(8, 16)}

    def expected(name):
        if ".experts." not in name:
            return saved[name]
        block, _, rest = name.partition(".experts.")
        expert, kind, _ = rest.split(".")
        if kind == "down_proj":
            return saved[f"{block}.experts.down_proj"][int(expert)]
        return saved[f"{block}.experts.gate_up_proj"][int(expert), stacked[kind]]

    for bucket in plan.buckets:
        delivery, checksums = source.stage(bucket)
        received = memory.receive(delivery, bucket, unused)
        data = torch.frombuffer(received, dtype=torch.bfloat16)
        assert torch.equal(
            data, torch.cat([expected(p.tensor.name).detach().flatten().bfloat16() for p in bucket.placements])
        )
        offset = 0
        for placement, checksum in zip(bucket.placements, checksums, strict=True):
            assert xxhash.xxh3_128_hexdigest(received[offset : offset + placement.nbytes]) == checksum
            offset += placement.nbytes
        source.release(delivery)


def test_a_box_is_cut_from_the_tensor_and_cast_once(memory):
    tensor = torch.arange(12.0).reshape(3, 4)
    bucket = bucket_of("bfloat16", (3, 4), ((1, 3), (2, 4)))
    source = source_of_one(tensor, memory)
    delivery, _ = source.stage(bucket)
    data = torch.frombuffer(memory.receive(delivery, bucket, unused), dtype=torch.bfloat16)
    assert data.tolist() == [6, 7, 10, 11]


def test_each_update_sends_the_present_values(memory):
    tensor = torch.zeros(2)
    source = source_of_one(tensor, memory)
    bucket = bucket_of("float32", (2,), ((0, 2),))
    sums = []
    for value in (1.0, 2.0):
        tensor.fill_(value)
        delivery, checksums = source.stage(bucket)
        source.release(delivery)
        sums.append(checksums)
    assert sums[0] != sums[1]


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        (Bucket(3, (Placement(TensorSpec("foreign", "float32", (1,)), ((0, 1),), "p", 0),), 4), "bucket 3 .*: foreign"),
        (bucket_of("float32", (2, 3), ((0, 2), (0, 3))), "1 tensors that the trainer lacks: w"),
        (bucket_of("float32", (3, 4), ((0, 4), (0, 4))), r"1 tensors that the trainer lacks: w\[0:4"),
        (Bucket(0, bucket_of("float32", (3, 4), ((0, 1), (0, 4))).placements, 15), "says 15 bytes"),
    ],
    ids=["unknown", "other shape", "beyond", "other sum"],
)
def test_a_bucket_of_what_the_trainer_lacks_is_refused(memory, bucket, message):
    source = source_of_one(torch.zeros(3, 4), memory)
    with pytest.raises(WeightSyncError, match=message):
        source.stage(bucket)
    assert not memory._sent


def test_staging_before_an_update_is_open_is_refused(tiny, memory, source_of):
    source = source_of(tiny(), memory)
    with pytest.raises(WeightSyncError, match="no update is open in the trainer"):
        source.stage(bucket_of("float32", (2,), ((0, 2),)))


class Told:
    """A transport that has every optional method, and notes their calls in order."""

    def __init__(self):
        self.calls = []
        self.lent = memoryview(bytearray(8))

    def expect(self, nbytes):
        self.calls.append(("expect", nbytes))

    def open(self, opening):
        self.calls.append(("open", opening))

    def buffer(self, bucket):
        return self.lent

    def send(self, bucket, payload):
        assert payload is self.lent
        self.calls.append(("send", bytes(payload)))
        return {}

    def release(self, delivery):
        self.calls.append(("release", delivery))

    def path(self):
        return "by air"

    def close(self):
        self.calls.append(("close",))


def test_a_transport_is_made_once_and_its_optional_methods_are_called_in_turn():
    made, told = [], Told()
    spec = TensorSpec("w", "float32", (2,))
    layout = Layout((Placement(spec, spec.whole, "p", 0),))
    source = WeightSource(layout, lambda: {"p": torch.ones(2)}, lambda name: made.append(name) or told)
    assert source.path() == ""
    for version in (1, 2):
        source.open("air", Opening(version))
    delivery, _ = source.stage(bucket_of("float32", (2,), ((0, 2),)))
    source.release(delivery)
    assert source.path() == "by air"
    source.close()
    sent = torch.ones(2).numpy().tobytes()
    assert told.calls == [
        ("expect", 8), ("open", Opening(1)), ("open", Opening(2)), ("send", sent), ("release", {}), ("close",),
    ]  # fmt: skip
    assert made == ["air"]


LARGE = 1 << 20


@pytest.fixture
def two_large(memory):
    """A source of two boxes that the second thread hashes, and the bucket of both; ``made(digest)``."""
    specs = [TensorSpec(name, "uint8", (LARGE,)) for name in ("a", "b")]
    placements = tuple(Placement(spec, spec.whole, spec.name, 0) for spec in specs)
    tensors = {name: torch.full((LARGE,), value, dtype=torch.uint8) for name, value in (("a", 1), ("b", 2))}

    def made(digest):
        source = WeightSource(Layout(placements), lambda: tensors, lambda name: memory, digest)
        source.open("memory", Opening(1))
        return source, tensors

    return made, Bucket(0, placements, 2 * LARGE)


def test_a_bucket_is_sent_only_when_all_of_it_is_hashed(two_large, memory):
    """So no segment can be released, and lent again, while the second thread reads it."""
    made, bucket = two_large
    begun, may_end = Event(), Event()

    def slow(data):
        begun.set()
        assert may_end.wait(20)
        return xxhash.xxh3_128_hexdigest(data)

    source, _ = made(slow)
    with ThreadPoolExecutor(1) as pool:
        staging = pool.submit(source.stage, bucket)
        assert begun.wait(20)
        assert not memory._sent
        may_end.set()
        delivery, checksums = staging.result(20)
    assert delivery["segment"] in memory._sent
    received = memory.receive(delivery, bucket, unused)
    halves = (received[:LARGE], received[LARGE:])
    assert checksums == tuple(xxhash.xxh3_128_hexdigest(half) for half in halves)


def test_checksums_are_of_the_bytes_that_were_sent_with_segments_reused_many_times(two_large, memory):
    made, bucket = two_large
    source, tensors = made(xxhash.xxh3_128_hexdigest)
    names = set()
    for value in range(20):
        tensors["a"].fill_(value)
        tensors["b"].fill_(255 - value)
        delivery, checksums = source.stage(bucket)
        names.add(delivery["segment"])
        expected = [bytes([each]) * LARGE for each in (value, 255 - value)]
        assert checksums == tuple(xxhash.xxh3_128_hexdigest(each) for each in expected)
        assert memory.receive(delivery, bucket, unused) == b"".join(expected)
        source.release(delivery)
    assert len(names) == 1


def test_a_bucket_that_fails_while_it_is_hashed_spoils_no_later_one(two_large, memory):
    """What the second thread still reads of it is of no use to anyone."""
    made, bucket = two_large
    begun, may_end, slow = Event(), Event(), [True]

    def digest(data):
        if slow:
            begun.set()
            assert may_end.wait(20)
        return xxhash.xxh3_128_hexdigest(data)

    source, tensors = made(digest)
    whole = tensors.pop("b")
    with pytest.raises(KeyError):
        source.stage(bucket)
    assert begun.wait(20), "the first box is being hashed"
    tensors["b"] = whole
    slow.clear()
    with ThreadPoolExecutor(1) as pool:
        staging = pool.submit(source.stage, bucket)  # packs into the memory that is still read
        may_end.set()
        delivery, checksums = staging.result(20)
    expected = [bytes([each]) * LARGE for each in (1, 2)]
    assert checksums == tuple(xxhash.xxh3_128_hexdigest(each) for each in expected)
    assert memory.receive(delivery, bucket, unused) == b"".join(expected)
    source.close()
