"""The disk_delta transport: what goes as changes and what whole, and that no wrong bytes come out of either."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from miles_core.api import (
    Bucket,
    Layout,
    Opening,
    Placement,
    PluginContext,
    StreamTargets,
    TensorSpec,
    WeightSyncError,
    WeightTransport,
)
from miles_core.types import Parameter, ParameterTable
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.source import WeightSource
from miles_plugins.transports.disk_delta import DiskDelta

SIZE = 20_000


def bucket_of(*names, index=0, stream=0, dtype="bfloat16"):
    spec = TensorSpec("", dtype, (SIZE,))
    specs = [dataclasses.replace(spec, name=name) for name in names]
    placements = tuple(Placement(one, one.whole, one.name, 0) for one in specs)
    return Bucket(index, placements, len(names) * spec.nbytes, stream)


A, B = bucket_of("a"), bucket_of("b", index=1)


def values(seed, bucket=A):
    return np.random.default_rng(seed).integers(0, 256, bucket.nbytes, dtype=np.uint8)


def changed(data, share=0.01, seed=0):
    words = data.view(np.uint16).copy()
    chosen = np.random.default_rng(seed).choice(words.size, int(words.size * share), replace=False)
    words[chosen] ^= 1
    return words.view(np.uint8)


def opening(version, *bases, buckets=(A, B)):
    """An update of one stream with a receiver for each base."""
    placements = tuple(placement for bucket in buckets for placement in bucket.placements)
    return Opening(version, (StreamTargets(placements, ({},) * len(bases), bases),))


@pytest.fixture
def make(tmp_path):
    """Makes a transport that writes below ``tmp_path``."""
    made = []

    def make(**options):
        config = DiskDelta.Config(**{"dir": str(tmp_path / "weights"), **options})
        made.append(DiskDelta(config, PluginContext(run_dir=tmp_path)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def carried(sender, receiver, bucket, data, held=None):
    """The delivery, its file's size and what arrives at a receiver that holds ``held``."""
    delivery = sender.send(bucket, memoryview(data))
    size = Path(delivery["file"]).stat().st_size
    arrived = receiver.receive(delivery, bucket, lambda: bytearray(held))
    sender.release(delivery)
    return delivery, size, bytes(arrived)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_the_first_update_goes_whole_and_later_ones_as_changes(make, tmp_path, encoding):
    sender, receiver = make(encoding=encoding), make(encoding="xor")  # the file says how it is coded
    assert isinstance(sender, WeightTransport)
    held = values(1)
    sender.open(opening(0, None))
    delivery, size, arrived = carried(sender, receiver, A, held)
    assert arrived == held.tobytes()
    assert "base" not in delivery
    assert size > A.nbytes
    for version in (1, 2, 3):
        data = changed(held, seed=version)
        sender.open(opening(version, version - 1, version - 1))
        delivery, size, arrived = carried(sender, receiver, A, data, held)
        assert arrived == data.tobytes()
        assert delivery["base"] == version - 1
        assert 30 * size < A.nbytes
        assert sender.path() == f"files, {size} bytes for {A.nbytes}"
        held = data
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.parametrize("bases", [(0, None), (None,), (0, 1), (-1,), ()])
def test_a_bucket_goes_whole_unless_all_its_receivers_hold_what_was_sent_last(make, bases):
    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(2, *bases))
    data = changed(values(1))
    delivery, _, arrived = carried(sender, make(), A, data)
    assert "base" not in delivery
    assert arrived == data.tobytes()


def test_other_placements_go_whole(make):
    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    other = bucket_of("c")
    for update, bucket in [(opening(1, 0, buckets=(A, other)), other), (opening(2, 1, buckets=(other,)), A)]:
        sender.open(update)
        assert "base" not in carried(sender, make(), bucket, values(1))[0]


def test_streams_have_bases_of_their_own(make):
    sender = make()
    second = dataclasses.replace(A, stream=1)
    targets = [StreamTargets(A.placements, ({},), (base,)) for base in (None, 0, None)]
    sender.open(Opening(0, (targets[0], targets[0])))
    for bucket, seed in ((A, 1), (second, 2)):
        carried(sender, make(), bucket, values(seed))
    sender.open(Opening(1, (targets[2], targets[1])))
    assert "base" not in carried(sender, make(), A, values(1))[0]
    data = changed(values(2))
    delivery, _, arrived = carried(sender, make(), second, data, values(2))
    assert (delivery["base"], arrived) == (0, data.tobytes())


def test_a_bucket_sent_twice_in_an_update_goes_whole_the_second_time(make):
    sender = make()
    for version, base in ((0, None), (1, 0)):
        sender.open(opening(version, base))
        carried(sender, make(), A, values(1), values(1))
    assert "base" not in carried(sender, make(), A, values(1))[0]


def test_an_update_that_failed_half_way_leaves_no_wrong_base(make):
    sender = make()
    sender.open(opening(0, None))
    for bucket in (A, B):
        carried(sender, make(), bucket, values(1))
    sender.open(opening(1, 0))
    carried(sender, make(), A, values(5), values(1))  # then the update fails, and no receiver holds version 1
    sender.open(opening(2, 0))
    assert "base" not in carried(sender, make(), A, changed(values(1)))[0]
    data = changed(values(1))
    delivery, _, arrived = carried(sender, make(), B, data, values(1))
    assert (delivery["base"], arrived) == (0, data.tobytes())


def test_a_file_that_cannot_be_written_leaves_the_base_for_the_next(make, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(WeightSyncError, match="cannot be written: .*No space left"):
            sender.send(A, memoryview(values(2)))
    data = changed(values(1))
    delivery, _, arrived = carried(sender, make(), A, data, values(1))
    assert (delivery["base"], arrived) == (0, data.tobytes())


def test_changes_that_take_more_than_the_bucket_go_whole(make):
    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(1, 0))
    assert "base" not in carried(sender, make(), A, values(2))[0]


def test_without_an_opening_every_bucket_goes_whole_and_none_is_kept(make):
    sender = make()
    for _ in range(2):
        assert "base" not in carried(sender, make(), A, values(1))[0]
    sender.open(opening(1, 0))
    assert "base" not in carried(sender, make(), A, values(1))[0]


def test_payloads_are_copied_so_that_the_trainer_may_go_on_with_its_memory(make):
    sender = make()
    sender.open(opening(0, None))
    first = values(1)
    carried(sender, make(), A, first)
    data = changed(first)
    first[:] = 0
    sender.open(opening(1, 0))
    assert carried(sender, make(), A, data, values(1))[2] == data.tobytes()


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_receiver_that_holds_other_bytes_refuses_the_changes(make, encoding):
    sender = make(encoding=encoding)
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(1, 0))
    with pytest.raises(WeightSyncError, match="not those of version 0") as caught:
        carried(sender, make(), A, changed(values(1)), values(2))
    assert caught.value.remedy == "Send a whole update to this engine."


@pytest.mark.parametrize(("said", "sent"), [(3, {"base": 3}), (None, {})])
def test_a_delivery_and_a_file_with_different_bases_are_refused(make, said, sent):
    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(1, 0))
    delivery = {key: value for key, value in sender.send(A, memoryview(changed(values(1)))).items() if key != "base"}
    with pytest.raises(WeightSyncError, match=f"is based on version 0; its delivery says {said}"):
        make().receive(delivery | sent, A, lambda: bytearray(values(1)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(0), bit=st.integers(0, 7), cut=st.booleans(), share=st.sampled_from([0.01, 0.7]))
def test_damage_to_a_file_is_refused_and_names_it(make, at, bit, cut, share):
    sender, held = make(), values(1)
    sender.open(opening(0, None))
    carried(sender, sender, A, held)
    sender.open(opening(1, 0))
    delivery = sender.send(A, memoryview(changed(held, share)))
    data = bytearray(Path(delivery["file"]).read_bytes())
    at %= len(data)
    data[at] ^= 1 << bit
    Path(delivery["file"]).write_bytes(data[:at] if cut else data)
    with pytest.raises(WeightSyncError, match=delivery["file"]):
        sender.receive(delivery, A, lambda: bytearray(held))
    sender.release(delivery)


def test_a_file_that_is_whole_but_does_not_decode_is_refused(make, monkeypatch):
    sender = make()
    sender.open(opening(0, None))
    carried(sender, make(), A, values(1))
    sender.open(opening(1, 0))
    monkeypatch.setattr("miles_plugins.transports.disk_delta.encode", lambda *_, **__: [b"\7" * 20])
    with pytest.raises(WeightSyncError, match=r"bucket-00000.delta cannot be decoded: a frame ends at byte"):
        carried(sender, make(), A, changed(values(1)), values(1))


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "int64", "bool"])
def test_every_type_goes_as_changes(make, dtype):
    bucket = bucket_of("a", "b", dtype=dtype)
    sender, held = make(), values(1, bucket)
    sender.open(opening(0, None, buckets=(bucket,)))
    carried(sender, make(), bucket, held)
    sender.open(opening(1, 0, buckets=(bucket,)))
    data = changed(held)
    delivery, size, arrived = carried(sender, make(), bucket, data, held)
    assert (delivery["base"], arrived) == (0, data.tobytes())
    assert 20 * size < bucket.nbytes


@pytest.mark.parametrize("nbytes", [0, 1, 3])
def test_buckets_of_few_bytes_arrive(make, nbytes):
    spec = TensorSpec("a", "uint8", (nbytes,))
    bucket = Bucket(0, (Placement(spec, spec.whole, "a", 0),), nbytes)
    sender, held = make(), bytes(nbytes)
    for version, base in ((0, None), (1, 0)):
        sender.open(opening(version, base, buckets=(bucket,)))
        data = bytes(range(version, version + nbytes))
        assert carried(sender, make(), bucket, data, held)[2] == data
        held = data


def test_a_payload_of_another_size_is_refused(make):
    with pytest.raises(WeightSyncError, match="bucket 0 has 40000 bytes; its payload 1"):
        make().send(A, memoryview(b"x"))


@pytest.mark.parametrize("file", ["/etc/passwd", "bucket-00000.delta", None, 7])
def test_foreign_files_are_refused(make, file):
    with pytest.raises(WeightSyncError, match="a delivery must name a file"):
        make().receive({"file": file}, A, bytearray)


def test_an_absent_file_is_refused_with_a_remedy(make):
    sender = make()
    delivery = sender.send(A, memoryview(values(1)))
    sender.release(delivery)
    with pytest.raises(WeightSyncError, match="bucket 0 cannot be read: .*No such file") as caught:
        make().receive(delivery, A, bytearray)
    assert "share" in caught.value.remedy


def test_only_one_bucket_needs_room_at_a_time(make):
    sender = make()
    sender.expect(1 << 60)  # no disk has so much
    assert carried(sender, make(), A, values(1))[2] == values(1).tobytes()


@pytest.mark.parametrize("options", [{"encoding": "add"}, {"level": 0}, {"level": 20}, {"dir": ""}, {"zstd": 1}])
def test_options_that_do_not_exist_are_refused(options):
    with pytest.raises(ValidationError):
        DiskDelta.Config(**options)


def test_it_imports_without_torch():
    code = "import sys, miles_plugins.transports.disk_delta; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Host:
    """An engine that does nothing beside holding parameters."""

    def exclusive(self):
        return nullcontext()

    def set_out_of_service(self, reason):
        self.reason = reason

    def finalise(self):
        pass

    def commit_version(self, version):
        self.version = version


def test_versions_arrive_in_live_parameters_and_a_torn_engine_gets_the_next_whole(make):
    torch.manual_seed(0)
    master = {"w": torch.randn(300, 70) * 0.02}
    live = {"w": torch.zeros(300, 70, dtype=torch.bfloat16)}
    spec = TensorSpec("w", "bfloat16", (300, 70))
    rows = [Placement(spec, ((top, top + 100), (0, 70)), "w", top * 140) for top in (0, 100, 200)]
    buckets = [Bucket(index, (row,), row.nbytes) for index, row in enumerate(rows)]
    whole = Placement(TensorSpec("w", "float32", (300, 70)), spec.whole, "w", 0)
    source = WeightSource(Layout((whole,)), lambda: master, lambda _: make())
    table = ParameterTable((Parameter("w", "bfloat16", (300, 70)),))
    receiver = WeightReceiver(table, live, lambda _: make(), Host())
    bases = []
    for version in range(5):
        master["w"] += 1e-5 * torch.randn(300, 70)
        begun = receiver.begin(version, "disk_delta")
        source.open("disk_delta", opening(version, begun.base, buckets=buckets))
        sums = {}
        for bucket in buckets[: 1 if version == 2 else 3]:  # version 2 ends half way
            delivery, sums[bucket.index] = source.stage(bucket)
            receiver.receive(version, bucket, delivery)
            source.release(delivery)
            bases.append(delivery.get("base"))
        if version == 2:
            receiver.abort()
            continue
        receiver.verify(version, sums)
        receiver.commit(version)
        assert torch.equal(live["w"], master["w"].to(torch.bfloat16))
    assert bases == [None, None, None, 0, 0, 0, 1, None, None, None, 3, 3, 3]
    source.close()
