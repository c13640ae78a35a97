"""Sharing out the work of sending among the ranks that hold the same boxes."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.int32]
    Sizes: TypeAlias = NDArray[np.int64]


def share_out(sets: Sequence[tuple[int, ...]], numbers: Numbers, sizes: Sizes) -> Numbers:
    """A sender for each box ``[n]``: one of ``sets[numbers[i]]``, so that all senders have about as many bytes.

    Greedy: boxes that few can send come first, of these the largest, and each goes to whom the fewest bytes are left.
    """
    senders = np.empty(len(numbers), np.int32)
    loads = [0] * (1 + max((max(ranks) for ranks in sets if ranks), default=0))
    order = np.lexsort((-sizes, numbers))
    bounds = np.searchsorted(numbers[order], np.arange(len(sets) + 1))
    for number in sorted(range(len(sets)), key=lambda one: len(sets[one])):
        chosen = order[bounds[number] : bounds[number + 1]]
        ranks = sets[number]
        if len(ranks) == 1:
            senders[chosen] = ranks[0]
            loads[ranks[0]] += int(sizes[chosen].sum())
        elif len(chosen):
            senders[chosen] = _greedy(ranks, sizes[chosen].tolist(), loads)
    return senders


def _greedy(ranks: Sequence[int], sizes: Sequence[int], loads: list[int]) -> list[int]:
    """A rank for each size, the least loaded at the time; ``loads`` grow."""
    heap = [(loads[rank], rank) for rank in ranks]
    heapify(heap)
    taken: list[int] = []
    for size in sizes:
        load, rank = heap[0]
        taken.append(rank)
        heapreplace(heap, (load + size, rank))
    for load, rank in heap:
        loads[rank] = load
    return taken
