"""Who sends which box to whom, for a whole plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.weights.balance import share_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.weights.balance import Numbers
    from miles_core.weights.holders import Holders
    from miles_core.weights.plan import Nodes, Stream


def choose_senders(streams: Sequence[Stream], holders: Holders, nodes: Nodes | None) -> list[Numbers]:
    """For each stream a rank of the trainer ``[receivers, boxes of all buckets]``."""
    if not streams:
        return []
    numbers = [_able(stream, holders, nodes) for stream in streams]
    sizes = [
        np.tile(np.array([box.nbytes for box in stream.boxes], np.int64), len(stream.receivers)) for stream in streams
    ]
    chosen = share_out(holders.sets, np.concatenate([one.ravel() for one in numbers]), np.concatenate(sizes))
    ends = np.cumsum([one.size for one in numbers])[:-1]
    parts = zip(np.split(chosen, ends), numbers, strict=True)
    return [part.reshape(one.shape) for part, one in parts]


def _able(stream: Stream, holders: Holders, nodes: Nodes | None) -> Numbers:
    """The number of the set that can send each box to each receiver; with ``nodes``, those on its machine if any."""
    numbers = np.array([holders.set_of(box) for box in stream.boxes], np.int32)
    if nodes is None:
        return np.tile(numbers, (len(stream.receivers), 1))
    used, back = np.unique(numbers, return_inverse=True)
    rows: dict[int, Numbers] = {}
    for node in {nodes.receivers[receiver] for receiver in stream.receivers}:
        here = frozenset(rank for rank, where in enumerate(nodes.senders) if where == node)
        rows[node] = np.array([holders.among(int(number), here) for number in used], np.int32)[back]
    return np.stack([rows[nodes.receivers[receiver]] for receiver in stream.receivers])
