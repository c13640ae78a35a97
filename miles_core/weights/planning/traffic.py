"""What a plan moves over which links, and how long that takes at given rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.weights.plan import Nodes, Plan, Stream

    Bytes: TypeAlias = NDArray[np.int64]

_GB = 1e9


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of one rank in 10^9 bytes per second, each way: between machines and within one.

    ``latency`` is what each bucket costs on top, in seconds.
    """

    rdma: float = 50.0
    node: float = 300.0
    latency: float = 20e-6

    def seconds(self, far: Bytes, near: Bytes) -> float:
        """The longest that any rank takes for its bytes."""
        return float((far / (self.rdma * _GB) + near / (self.node * _GB)).max(initial=0.0))


@dataclass(frozen=True)
class Traffic:
    """Bytes of an update: what each rank of the trainer sends, and what each receiver of a stream gets.

    ``far`` goes to another machine, ``near`` stays on one; both ``[ranks]``, and ``[receivers]`` for each stream.
    """

    sent_far: Bytes
    sent_near: Bytes
    got_far: Sequence[Bytes]
    got_near: Sequence[Bytes]
    buckets: int

    @property
    def sent(self) -> Bytes:
        """All bytes by sender."""
        return self.sent_far + self.sent_near

    def seconds(self, links: Links) -> float:
        """What the slowest rank takes if all work at once, and the latency of a receiver's buckets."""
        got = [links.seconds(far, near) for far, near in zip(self.got_far, self.got_near, strict=True)]
        return max(links.seconds(self.sent_far, self.sent_near), *got) + self.buckets * links.latency


def traffic(plan: Plan, nodes: Nodes) -> Traffic:
    """Count the bytes of a plan."""
    where = np.array(nodes.senders)
    far, near = np.zeros(len(where), np.int64), np.zeros(len(where), np.int64)
    got_far: list[Bytes] = []
    got_near: list[Bytes] = []
    for stream in plan.streams:
        sizes, senders = _transfers(stream)
        here = np.array([nodes.receivers[receiver] for receiver in stream.receivers])
        is_near = where[senders] == here[:, None]
        np.add.at(near, senders[is_near], np.broadcast_to(sizes, senders.shape)[is_near])
        np.add.at(far, senders[~is_near], np.broadcast_to(sizes, senders.shape)[~is_near])
        got_near.append((sizes * is_near).sum(axis=1))
        got_far.append((sizes * ~is_near).sum(axis=1))
    return Traffic(far, near, got_far, got_near, max((len(stream.buckets) for stream in plan.streams), default=0))


def _transfers(stream: Stream) -> tuple[Bytes, NDArray[np.int32]]:
    """Bytes of each box, and who sends it to each receiver."""
    sizes = np.array([box.nbytes for box in stream.boxes], np.int64)
    if stream.senders is not None:
        return sizes, stream.senders
    return sizes, np.zeros((len(stream.receivers), len(sizes)), np.int32)
