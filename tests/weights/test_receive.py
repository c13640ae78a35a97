"""The engine's end: what a transaction on live parameters takes, refuses and leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket, Placement, TensorSpec
from miles_core.weights.receive import Begun, ReceiverStatus


def test_whole_update_makes_the_models_equal_and_restores_service(engine, receiver, trained, plan, send):
    assert receiver.begin(4, "memory") == Begun(3, torn=False, base=3)
    assert engine.out_of_service is None
    checksums = send(plan.buckets)
    assert engine.out_of_service == "updating weights to version 4"
    receiver.verify(4, checksums)
    assert (engine.version, engine.finalised) == (3, 1)
    receiver.commit(4)
    assert (engine.version, engine.out_of_service) == (4, None)
    assert receiver.status == ReceiverStatus(4, torn=False)
    with torch.no_grad():
        assert torch.equal(engine.logits([1, 2, 3]), trained(torch.tensor([[1, 2, 3]])).logits)


def test_a_version_below_the_committed_one_is_refused(receiver):
    with pytest.raises(WeightSyncError, match="versions only grow: this engine committed 3, version 2"):
        receiver.begin(2, "memory")


def test_the_committed_version_may_come_again_for_an_engine_that_rejoins(engine, receiver, trained, plan, send):
    receiver.begin(3, "memory")
    receiver.verify(3, send(plan.buckets, version=3))
    receiver.commit(3)
    assert receiver.status == ReceiverStatus(3, torn=False)
    assert torch.equal(engine.model.lm_head.weight, trained.lm_head.weight)


def test_a_begin_gives_up_the_update_that_is_open(engine, receiver, plan, send):
    receiver.begin(4, "memory")
    send(plan.buckets[:1])
    begun = receiver.begin(5, "memory")
    assert (begun.torn, begun.base) == (True, None)
    with pytest.raises(WeightSyncError, match="no update to version 4 is open: version 5 is"):
        send(plan.buckets[1:2])
    assert engine.out_of_service is not None
    receiver.verify(5, send(plan.buckets, version=5))
    receiver.commit(5)
    assert receiver.status == ReceiverStatus(5, torn=False)


def test_abort_before_the_first_byte_leaves_the_engine_in_service(engine, receiver):
    before = engine.logits([1, 2, 3])
    receiver.begin(4, "memory")
    receiver.abort()
    assert engine.out_of_service is None
    assert receiver.status == ReceiverStatus(3, torn=False)
    assert torch.equal(engine.logits([1, 2, 3]), before)


def test_abort_after_a_byte_leaves_it_torn_until_a_whole_update_commits(engine, receiver, plan, send):
    receiver.begin(4, "memory")
    send(plan.buckets[:1])
    receiver.abort()
    assert f"ended after {len(plan.buckets[0].placements)} tensors" in engine.out_of_service
    assert receiver.status == ReceiverStatus(3, torn=True)

    receiver.begin(4, "memory")
    receiver.abort()
    assert engine.out_of_service.startswith("weights are torn")

    receiver.begin(4, "memory")
    receiver.verify(4, send(plan.buckets))
    receiver.commit(4)
    assert engine.out_of_service is None
    assert receiver.status == ReceiverStatus(4, torn=False)


def test_write_that_fails_half_way_leaves_the_engine_torn(engine, receiver, plan, send, monkeypatch):
    receiver.begin(4, "memory")

    def interrupted(bucket, data):
        raise MemoryError

    monkeypatch.setattr(receiver._live, "write", interrupted)
    with pytest.raises(MemoryError):
        send(plan.buckets[:1])
    receiver.abort()
    assert engine.out_of_service.startswith("weights are torn")


def test_commit_needs_verification_of_all_that_arrived(receiver, plan, send):
    receiver.begin(4, "memory")
    checksums = send(plan.buckets[:-1])
    with pytest.raises(WeightSyncError, match="not verified"):
        receiver.commit(4)
    receiver.verify(4, checksums)
    checksums |= send(plan.buckets[-1:])
    with pytest.raises(WeightSyncError, match="not verified"):
        receiver.commit(4)
    receiver.verify(4, checksums)
    receiver.commit(4)


def test_commit_needs_every_byte_of_every_parameter(engine, receiver, plan, send):
    receiver.begin(4, "memory")
    receiver.verify(4, send(plan.buckets[:-1]))
    last = plan.buckets[-1]
    named = rf"{last.nbytes} lack in \d+ of them: .*{last.placements[0].parameter} \(\d+ bytes\)"
    with pytest.raises(WeightSyncError, match=named):
        receiver.commit(4)
    with pytest.raises(WeightSyncError, match=f"all but 4 bytes .* by plan; {last.nbytes} lack"):
        receiver.commit(4, padding=4)
    assert engine.version == 3
    assert engine.out_of_service is not None


def test_padding_is_what_the_plan_leaves_out_and_no_byte_more_or_less(memory, toy_engine):
    """Three of four rows are a checkpoint tensor."""
    weight = torch.full((4, 2), 7.0)
    engine = toy_engine.ToyEngine(None, memory, tensors={"w": weight})
    spec = TensorSpec("w", "float32", (3, 2))
    bucket = Bucket(0, (Placement(spec, spec.whole, "w", 0),), 24)
    data = torch.arange(6.0).numpy().tobytes()
    engine.receiver.begin(0, "memory")
    engine.receiver.receive(0, bucket, memory.send(bucket, memoryview(data)))
    engine.receiver.verify(0, {0: [xxhash.xxh3_128_hexdigest(data)]})
    for padding in (0, 7, 9):
        with pytest.raises(WeightSyncError, match="8 lack in 1 of them: w "):
            engine.receiver.commit(0, padding)
    engine.receiver.commit(0, 8)
    assert weight.tolist() == [[0, 1], [2, 3], [4, 5], [7, 7]]


def test_verify_names_a_missing_and_an_unexpected_bucket(receiver, plan, send):
    receiver.begin(4, "memory")
    checksums = send(plan.buckets[:2])
    with pytest.raises(WeightSyncError, match="bucket 2 never arrived"):
        receiver.verify(4, {**checksums, 2: ("0" * 32,)})
    with pytest.raises(WeightSyncError, match="bucket 1 arrived, but has not one checksum for each tensor"):
        receiver.verify(4, {0: checksums[0]})
    with pytest.raises(WeightSyncError, match="bucket 1 arrived, but has not one checksum for each tensor"):
        receiver.verify(4, {**checksums, 1: checksums[1][:-1]})


def test_verify_reads_the_live_parameters_and_names_the_tensor(engine, receiver, plan, send):
    receiver.begin(4, "memory")
    checksums = send(plan.buckets)
    with torch.no_grad():
        engine.model.lm_head.weight[0, 0] += 1
    with pytest.raises(WeightSyncError, match=r"lm_head.weight in bucket \d+ is not what was sent: expected xxh3-128"):
        receiver.verify(4, checksums)


def test_what_an_engine_rebuilds_is_rebuilt_before_it_is_verified(engine, receiver, plan, send):
    receiver.begin(4, "memory")
    checksums = send(plan.buckets)

    def spoils():
        with torch.no_grad():
            engine.model.lm_head.weight.zero_()

    engine.finalise = spoils
    with pytest.raises(WeightSyncError, match=r"lm_head.weight in bucket \d+ is not what was sent"):
        receiver.verify(4, checksums)


def test_bucket_or_box_that_comes_twice_is_refused(receiver, plan, send):
    receiver.begin(4, "memory")
    send(plan.buckets[:1])
    with pytest.raises(WeightSyncError, match="bucket 0 of version 4 came twice"):
        send(plan.buckets[:1])
    with pytest.raises(WeightSyncError, match="repeats tensor"):
        send([replace(plan.buckets[0], index=7)])


def bad_buckets(bucket):
    first = bucket.placements[0]
    spec = first.tensor

    def with_first(placement):
        return Bucket(0, (placement, *bucket.placements[1:]), bucket.nbytes)

    return [
        (with_first(replace(first, parameter="foreign")), "of foreign: this engine has no such parameter"),
        (with_first(replace(first, tensor=replace(spec, dtype="int32"))), r"\(int32\) does not fit .* has float32"),
        (with_first(replace(first, offset=1 << 40)), "does not fit bytes"),
        (with_first(replace(first, offset=-4)), "does not fit bytes -4"),
        (with_first(replace(first, strides=(-1,) * len(spec.shape))), "does not fit bytes"),
        (Bucket(0, bucket.placements, 1), "says 1 bytes"),
        (Bucket(0, (), 0), "holds no tensors"),
    ]


@pytest.mark.parametrize("case", range(7))
def test_bucket_that_does_not_fit_the_engine_is_refused_before_a_byte_is_written(engine, receiver, plan, source, case):
    bad, message = bad_buckets(plan.buckets[0])[case]
    delivery, _ = source.stage(plan.buckets[0])
    before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    receiver.begin(4, "memory")
    with pytest.raises(WeightSyncError, match=message):
        receiver.receive(4, bad, delivery)
    assert engine.out_of_service is None
    assert not receiver.status.torn
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.model.state_dict().items())


def test_calls_without_an_open_update_of_that_version_are_refused(receiver, plan, send):
    with pytest.raises(WeightSyncError, match="no update to version 4 is open: none is open"):
        send(plan.buckets[:1])
    receiver.begin(4, "memory")
    for call in (lambda: send(plan.buckets[:1], version=5), lambda: receiver.verify(5, {}), lambda: receiver.commit(5)):
        with pytest.raises(WeightSyncError, match="no update to version 5 is open: version 4 is"):
            call()
