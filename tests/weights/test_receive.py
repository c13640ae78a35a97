from __future__ import annotations

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket
from miles_core.weights.plan import make_plan
from miles_core.weights.receive import ReceiverStatus


@pytest.fixture
def trained(tiny):
    return tiny(seed=1)


@pytest.fixture
def engine(tiny, memory, toy_engine):
    return toy_engine.ToyEngine(tiny(seed=2), memory, version=3)


@pytest.fixture
def source(trained, memory, source_of):
    return source_of(trained, memory)


@pytest.fixture
def plan(source, engine):
    plan = make_plan(source.layout, [engine.receiver.layout], 4000)
    assert len(plan.buckets) > 3
    return plan


@pytest.fixture
def send(source, engine):
    def send(buckets, version=4):
        checksums = []
        for bucket in buckets:
            delivery, checksum = source.stage(bucket)
            engine.receiver.receive(version, bucket, delivery)
            source.release(delivery)
            checksums.append(checksum)
        return checksums

    return send


def test_whole_update_makes_the_models_equal_and_restores_service(engine, trained, plan, send):
    engine.receiver.begin(4)
    assert engine.out_of_service is None
    checksums = send(plan.buckets)
    assert engine.out_of_service == "updating weights to version 4"
    engine.receiver.verify(4, checksums)
    assert engine.version == 3
    engine.receiver.commit(4)
    assert (engine.version, engine.out_of_service) == (4, None)
    assert engine.receiver.status == ReceiverStatus(4, torn=False)
    with torch.no_grad():
        assert torch.equal(engine.logits([1, 2, 3]), trained(torch.tensor([[1, 2, 3]])).logits)


def test_checksum_is_of_the_bytes_that_travel(source, plan, memory):
    delivery, checksum = source.stage(plan.buckets[0])
    assert xxhash.xxh3_128_hexdigest(memory.receive(delivery, plan.buckets[0])) == checksum


@pytest.mark.parametrize("version", [2, 3])
def test_version_that_does_not_grow_is_refused(engine, version):
    with pytest.raises(WeightSyncError, match=f"versions only grow: this engine committed 3, version {version}"):
        engine.receiver.begin(version)


def test_second_begin_is_refused_until_abort(engine):
    engine.receiver.begin(4)
    with pytest.raises(WeightSyncError, match="the update to version 4 is still open"):
        engine.receiver.begin(5)
    engine.receiver.abort()
    engine.receiver.begin(5)


def test_abort_before_the_first_byte_leaves_the_engine_in_service(engine):
    before = engine.logits([1, 2, 3])
    engine.receiver.begin(4)
    engine.receiver.abort()
    assert engine.out_of_service is None
    assert engine.receiver.status == ReceiverStatus(3, torn=False)
    assert torch.equal(engine.logits([1, 2, 3]), before)


def test_abort_after_a_byte_leaves_it_torn_until_a_whole_update_commits(engine, plan, send):
    engine.receiver.begin(4)
    send(plan.buckets[:1])
    engine.receiver.abort()
    torn = f"ended after {len(plan.buckets[0].tensors)} of {plan.tensors} tensors"
    assert torn in engine.out_of_service
    assert engine.receiver.status == ReceiverStatus(3, torn=True)

    engine.receiver.begin(4)
    engine.receiver.abort()
    assert engine.out_of_service.startswith("weights are torn")

    engine.receiver.begin(4)
    engine.receiver.verify(4, send(plan.buckets))
    engine.receiver.commit(4)
    assert engine.out_of_service is None
    assert engine.receiver.status == ReceiverStatus(4, torn=False)


def test_write_that_fails_half_way_leaves_the_engine_torn(engine, plan, source, monkeypatch):
    delivery, _ = source.stage(plan.buckets[0])
    engine.receiver.begin(4)

    def interrupted(bucket, data):
        raise MemoryError

    monkeypatch.setattr(engine.receiver._live, "write", interrupted)
    with pytest.raises(MemoryError):
        engine.receiver.receive(4, plan.buckets[0], delivery)
    engine.receiver.abort()
    assert engine.out_of_service.startswith("weights are torn")


def test_commit_needs_verification_of_all_that_arrived(engine, plan, send):
    engine.receiver.begin(4)
    checksums = send(plan.buckets[:-1])
    with pytest.raises(WeightSyncError, match="not verified"):
        engine.receiver.commit(4)
    engine.receiver.verify(4, checksums)
    checksums += send(plan.buckets[-1:])
    with pytest.raises(WeightSyncError, match="not verified"):
        engine.receiver.commit(4)
    engine.receiver.verify(4, checksums)
    engine.receiver.commit(4)


def test_commit_needs_every_tensor_of_the_layout(engine, plan, send):
    engine.receiver.begin(4)
    engine.receiver.verify(4, send(plan.buckets[:-1]))
    with pytest.raises(WeightSyncError, match=f"lacks {len(plan.buckets[-1].tensors)} tensors"):
        engine.receiver.commit(4)
    assert engine.version == 3
    assert engine.out_of_service is not None


def test_verify_names_a_missing_and_an_unexpected_bucket(engine, plan, send):
    engine.receiver.begin(4)
    checksums = send(plan.buckets[:2])
    with pytest.raises(WeightSyncError, match="bucket 2 never arrived"):
        engine.receiver.verify(4, [*checksums, "0" * 32])
    with pytest.raises(WeightSyncError, match="bucket 1 arrived, but has no checksum"):
        engine.receiver.verify(4, checksums[:1])


def test_verify_reads_the_live_parameters(engine, plan, send):
    engine.receiver.begin(4)
    checksums = send(plan.buckets)
    with torch.no_grad():
        engine.model.lm_head.weight[0, 0] += 1
    with pytest.raises(WeightSyncError, match=r"bucket \d+ is not what was sent"):
        engine.receiver.verify(4, checksums)


def test_bucket_or_tensor_that_comes_twice_is_refused(engine, plan, send):
    engine.receiver.begin(4)
    send(plan.buckets[:1])
    with pytest.raises(WeightSyncError, match="bucket 0 of version 4 came twice"):
        send(plan.buckets[:1])
    first = plan.buckets[0]
    with pytest.raises(WeightSyncError, match="repeats tensor"):
        send([Bucket(7, first.tensors, first.nbytes)])


def test_bucket_that_does_not_fit_the_engine_is_refused_before_a_byte_is_written(engine, plan, source):
    bucket = plan.buckets[0]
    delivery, _ = source.stage(bucket)
    engine.receiver.begin(4)
    foreign = Bucket(0, (type(bucket.tensors[0])("foreign", "float32", (1,), 4),), 4)
    for bad, message in [(foreign, "one of this engine's tensors"), (Bucket(0, bucket.tensors, 1), "says 1 bytes")]:
        with pytest.raises(WeightSyncError, match=message):
            engine.receiver.receive(4, bad, delivery)
    with pytest.raises(WeightSyncError, match="no update to version 5 is open: version 4 is"):
        engine.receiver.receive(5, bucket, delivery)
    assert engine.out_of_service is None
    assert not engine.receiver.status.torn


def test_read_only_bytes_from_a_transport_are_written_without_a_warning(engine, plan, source, memory, monkeypatch):
    delivery, checksum = source.stage(plan.buckets[0])
    data = bytes(memory.receive(delivery, plan.buckets[0]))
    monkeypatch.setattr(memory, "receive", lambda delivery, bucket: data)
    engine.receiver.begin(4)
    engine.receiver.receive(4, plan.buckets[0], delivery)
    engine.receiver.verify(4, [checksum])
