"""Which memory peers may reach.

Mooncake registers address 0 without a word, and over TCP it sends from memory that was never registered, which then
fails on a cluster.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from miles_core.api import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_plugins.transports.transfer_engine.facade import TransferEngine


class RegisteredMemory:
    """The ranges that are registered now: disjoint, in order, none of them at address 0."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._held: list[tuple[int, int]] = []

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each."""
        return tuple(self._held)

    def hold(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Register these (address and bytes, in any order and number) and nothing else; what is registered stays so.

        Raises:
            WeightSyncError: if one has no address or no bytes, or Mooncake refuses it.
        """
        wanted = merged(ranges)
        for stale in [one for one in self._held if one not in wanted]:
            self._unregister(stale)
        for start, stop in wanted:
            if (start, stop) not in self._held:
                self._register(start, stop)

    def require(self, address: int, nbytes: int, what: str) -> None:
        """Check that a range lies in one that is registered.

        Raises:
            WeightSyncError: if it does not.
        """
        index = bisect.bisect_right(self._held, address, key=lambda one: one[0]) - 1
        if index < 0 or nbytes < 0 or address + nbytes > self._held[index][1]:
            raise WeightSyncError(f"{what}: {nbytes} bytes at {address:#x} are not in registered memory")

    def close(self) -> None:
        """Unregister everything; what Mooncake says to it does not matter any more."""
        for start, _ in self._held:
            self._engine.unregister_memory(start)
        self._held.clear()

    def _register(self, start: int, stop: int) -> None:
        status = self._engine.register_memory(start, stop - start)
        if status != 0:
            raise WeightSyncError(
                f"Mooncake cannot register {stop - start} bytes at {start:#x} (status {status})",
                remedy="For RDMA, allow this process to lock memory: ulimit -l unlimited.",
            )
        bisect.insort(self._held, (start, stop))

    def _unregister(self, one: tuple[int, int]) -> None:
        self._held.remove(one)
        status = self._engine.unregister_memory(one[0])
        if status != 0:
            raise WeightSyncError(f"Mooncake cannot unregister the memory at {one[0]:#x} (status {status})")


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Start and stop of ranges given as address and bytes, with those that overlap made one.

    Raises:
        WeightSyncError: if one has no address or no bytes.
    """
    found: list[tuple[int, int]] = []
    for address, nbytes in sorted(set(ranges)):
        if address <= 0 or nbytes <= 0:
            raise WeightSyncError(
                f"memory of {nbytes} bytes at address {address:#x} cannot be registered",
                remedy="Resume the memory of the weights before the update.",
            )
        # Ranges that only touch stay apart: on a GPU they are two allocations, which cannot be registered as one.
        if found and address < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], address + nbytes))
        else:
            found.append((address, address + nbytes))
    return found
