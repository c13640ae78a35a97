from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.memory import RegisteredMemory, merged

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=12)


class Engine:
    """Refuses what Mooncake refuses: overlaps, and what is not registered."""

    def __init__(self):
        self.held, self.calls = {}, 0

    def register_memory(self, address, nbytes):
        self.calls += 1
        if any(address < stop and start < address + nbytes for start, stop in self.held.items()):
            return -7
        self.held[address] = address + nbytes
        return 0

    def unregister_memory(self, address):
        self.calls += 1
        return 0 if self.held.pop(address, None) else -3


@given(RANGES, RANGES)
def test_exactly_what_is_held_is_registered_and_nothing_twice(first, second):
    engine = Engine()
    memory = RegisteredMemory(engine)
    for ranges in (first, second):
        memory.hold(ranges)
        registered = {byte for start, stop in engine.held.items() for byte in range(start, stop)}
        assert registered == {byte for start, nbytes in ranges for byte in range(start, start + nbytes)}
        assert memory.ranges == tuple(sorted(engine.held.items()))
    memory.close()
    assert (engine.held, memory.ranges) == ({}, ())


@given(RANGES, st.integers(0, 80), st.integers(0, 12))
def test_a_range_is_refused_unless_every_byte_of_it_is_in_one_registered_range(ranges, address, nbytes):
    memory = RegisteredMemory(Engine())
    memory.hold(ranges)
    if any(start <= address and address + nbytes <= stop for start, stop in merged(ranges)):
        memory.require(address, nbytes, "w")
    else:
        with pytest.raises(WeightSyncError, match=f"w: {nbytes} bytes at {address:#x} are not in registered memory"):
            memory.require(address, nbytes, "w")


def test_what_stays_is_not_registered_again():
    engine = Engine()
    memory = RegisteredMemory(engine)
    memory.hold([(10, 5), (20, 5)])
    memory.hold([(20, 5), (10, 5)])
    assert engine.calls == 2
    memory.hold([(20, 5)])
    assert (engine.calls, engine.held) == (3, {20: 25})


@pytest.mark.parametrize("bad", [(0, 8), (8, 0), (8, -1)])
def test_no_address_and_no_bytes_are_refused_before_anything_is_registered(bad):
    engine = Engine()
    with pytest.raises(WeightSyncError, match="cannot be registered"):
        RegisteredMemory(engine).hold([(100, 8), bad])
    assert engine.calls == 0


def test_a_refusal_of_mooncake_says_what_to_do_and_leaves_the_registry_true():
    engine = Engine()
    engine.held[12] = 14  # registered behind the registry's back
    memory = RegisteredMemory(engine)
    with pytest.raises(WeightSyncError, match=r"5 bytes at 0xa \(status -7\)\n  -> For RDMA"):
        memory.hold([(10, 5)])
    assert memory.ranges == ()
