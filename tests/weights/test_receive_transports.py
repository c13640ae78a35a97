"""Receivers and their transports: bytes that they give, deltas, those that write by themselves, live memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import xxhash

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import view
from miles_core.weights.receive import Begun, WeightReceiver


class Given:
    """A transport that gives ``data`` of a bucket, whatever the delivery, and notes what the engine held before."""

    def __init__(self, data=None):
        self.data = data
        self.held = []

    def receive(self, delivery, bucket, held):
        self.held.append(bytes(held()))
        return self.data

    def close(self):
        self.closed = True


def bare(engine, transport, *, version=-1, made=None):
    """A receiver of the engine's model that gets its bytes from ``transport``."""
    made = [] if made is None else made
    return WeightReceiver(
        engine.receiver.table, engine.tensors, lambda name: made.append(name) or transport, engine, version=version
    )


def test_read_only_bytes_from_a_transport_are_written_without_a_warning(engine, plan, source, memory):
    bucket = plan.buckets[0]
    delivery, checksums = source.stage(bucket)
    receiver = bare(engine, Given(bytes(memory.receive(delivery, bucket, bytearray))))
    receiver.begin(4, "memory")
    receiver.receive(4, bucket, delivery)
    receiver.verify(4, {0: checksums})


def test_a_transport_may_look_at_what_the_parameters_hold(engine, plan):
    bucket = plan.buckets[0]
    transport = Given(bytes(bucket.nbytes))
    receiver = bare(engine, transport)
    expected = b"".join(view(engine.tensors, p).contiguous().numpy().tobytes() for p in bucket.placements)
    receiver.begin(4, "memory")
    receiver.receive(4, bucket, {})
    assert transport.held == [expected]


def test_bytes_that_are_too_few_are_refused_and_tear_nothing(engine, plan):
    bucket = plan.buckets[0]
    receiver = bare(engine, Given(bytes(bucket.nbytes - 1)))
    receiver.begin(4, "memory")
    with pytest.raises(WeightSyncError, match=f"has {bucket.nbytes} bytes; {bucket.nbytes - 1} arrived"):
        receiver.receive(4, bucket, {})
    assert not receiver.status.torn


def test_a_change_is_taken_by_weights_of_its_base_only(receiver, plan, send):
    receiver.begin(4, "memory")
    with pytest.raises(WeightSyncError, match="changes weights of version 2; this engine held version 3"):
        send(plan.buckets[:1], base=2)
    assert not receiver.status.torn
    send(plan.buckets[:1], base=3)
    send(plan.buckets[1:2], base=3)  # its base is what it held when the update began
    receiver.abort()
    receiver.begin(4, "memory")
    with pytest.raises(WeightSyncError, match="changes weights of version 3; this engine held torn weights"):
        send(plan.buckets[:1], base=3)


def test_an_engine_that_never_committed_holds_its_own_version_as_base(engine, plan):
    receiver = bare(engine, Given(), version=-1)
    assert receiver.begin(0, "memory").base == -1


class Writing(Given):
    """A transport that writes into the parameters by itself."""

    def __init__(self, trained):
        super().__init__()
        self.trained = trained

    def offer(self, tensors):
        self.tensors = tensors
        return {"address": 17}

    def receive(self, delivery, bucket, held):
        with torch.no_grad():
            for placement in bucket.placements:
                name = placement.parameter
                self.tensors[name].copy_(self.trained[name])


def test_a_transport_that_writes_by_itself_tears_the_weights_from_the_begin_on(engine, trained, plan, source):
    receiver = bare(engine, Writing(trained.state_dict()), version=3)
    assert receiver.begin(4, "any") == Begun(3, torn=True, base=3, offer={"address": 17})
    assert engine.out_of_service == "updating weights to version 4"
    assert receiver.status.torn
    receiver.abort()
    assert engine.out_of_service.startswith("weights are torn: the update to version 4 ended after 0 tensors")

    receiver.begin(4, "any")
    checksums = {}
    for bucket in plan.buckets:
        delivery, checksums[bucket.index] = source.stage(bucket)
        receiver.receive(4, bucket, delivery)
        source.release(delivery)
    receiver.verify(4, checksums)
    receiver.commit(4)
    assert engine.out_of_service is None
    assert torch.equal(engine.model.lm_head.weight, trained.lm_head.weight)


def test_a_transport_is_made_once_for_each_name_and_closed_at_the_end(engine):
    made, transport = [], Given()
    receiver = bare(engine, transport, made=made)
    for name in ("a", "b", "a"):
        receiver.begin(4, name)
    assert made == ["a", "b"]
    receiver.close()
    assert transport.closed


def test_an_offer_that_fails_tears_nothing(engine):
    transport = Writing({})

    def fails(tensors):
        raise WeightSyncError("no port is free")

    transport.offer = fails
    receiver = bare(engine, transport, version=3)
    with pytest.raises(WeightSyncError, match="no port is free"):
        receiver.begin(4, "any")
    assert not receiver.status.torn
    assert engine.out_of_service is None


def test_checksums_are_of_what_the_parameters_hold_now(engine, receiver, layout):
    placements = layout.placements[:5]
    expected = [
        xxhash.xxh3_128_hexdigest(view(engine.tensors, one).contiguous().numpy().tobytes()) for one in placements
    ]
    held = receiver.checksums(placements)
    assert (held.version, held.torn, list(held.checksums)) == (3, False, expected)
    with torch.no_grad():
        view(engine.tensors, placements[2]).add_(1)
    changed = receiver.checksums(placements).checksums
    assert [one != other for one, other in zip(changed, expected, strict=True)] == [False, False, True, False, False]
    with pytest.raises(WeightSyncError, match="no such parameter"):
        receiver.checksums([replace(placements[0], parameter="foreign")])


def test_weights_whose_memory_is_released_take_no_update_and_are_torn_afterwards(engine, receiver):
    storage = engine.model.lm_head.weight.untyped_storage()
    size = storage.nbytes()
    receiver.begin(4, "memory")
    with (
        pytest.raises(WeightSyncError, match="cannot be released: the update to version 4 is open"),
        receiver.discarding(),
    ):
        raise AssertionError
    receiver.abort()
    with receiver.discarding():
        storage.resize_(0)
    for call in (lambda: receiver.begin(4, "memory"), lambda: receiver.checksums([])):
        with pytest.raises(WeightSyncError, match="memory of .*weights is released"):
            call()
    storage.resize_(size)
    assert receiver.begin(4, "memory") == Begun(3, torn=True, base=None)
