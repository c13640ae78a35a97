"""Plans: which boxes travel together and to whom, decided and checked before the first byte moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.weights.assign import choose_senders
from miles_core.weights.buckets import bucketed
from miles_core.weights.holders import holders_of
from miles_core.weights.misfits import misfits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.types import Bucket, Layout, Placement
    from miles_core.weights.holders import Sources

SAME_MODEL = "Let trainer and engines build the same model with the same bridge."


@dataclass(frozen=True, slots=True)
class Receiver:
    """One rank of an engine."""

    engine: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """Receivers whose layouts are equal, and the buckets that each of them gets, in the order in which they travel.

    ``senders`` says which rank of the trainer sends a box to a receiver ``[receivers, boxes of all buckets]``; it is
    ``None`` where the trainer has only one.
    """

    receivers: tuple[Receiver, ...]
    layout: Layout
    buckets: tuple[Bucket, ...]
    senders: NDArray[np.int32] | None = field(default=None, compare=False)

    @property
    def boxes(self) -> tuple[Placement, ...]:
        """What each receiver gets, in the order of the buckets."""
        return tuple(box for bucket in self.buckets for box in bucket.placements)

    @property
    def nbytes(self) -> int:
        """Bytes that each receiver gets."""
        return sum(bucket.nbytes for bucket in self.buckets)


@dataclass(frozen=True, slots=True)
class Nodes:
    """On which machine ranks of the trainer, and receivers, run."""

    senders: Sequence[int]
    receivers: Mapping[Receiver, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The streams of one update."""

    streams: tuple[Stream, ...]

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Those of all streams, by index."""
        return tuple(bucket for stream in self.streams for bucket in stream.buckets)

    @property
    def tensors(self) -> int:
        """How many checkpoint tensors travel, in whole or in parts."""
        return len({one.tensor.name for bucket in self.buckets for one in bucket.placements})

    @property
    def nbytes(self) -> int:
        """Bytes that a receiver gets, at most."""
        return max((stream.nbytes for stream in self.streams), default=0)


def make_plan(
    source: Sources, receivers: Mapping[Receiver, Layout], bucket_bytes: int, nodes: Nodes | None = None
) -> Plan:
    """Buckets of at most ``bucket_bytes`` in the receivers' types; a box above the bound has a bucket of its own.

    Boxes that fill one parameter share a bucket where they fit the bound. ``source`` is the trainer's layout, or those
    of its ranks: then boxes are cut where the ranks' shards meet, and each part has one sender, so that all ranks send
    about as much; with ``nodes``, one on the receiver's machine where there is any.

    Raises:
        WeightSyncError: if :func:`~miles_core.weights.misfits.misfits` finds any.
    """
    holders = holders_of(source)
    if found := misfits(holders, receivers):
        raise WeightSyncError("; ".join(dict.fromkeys(found.values())), remedy=SAME_MODEL)
    streams: list[Stream] = []
    index = 0
    for number, alike in enumerate(_classes(receivers)):
        layout = receivers[alike[0]]
        pieces = [piece for placement in layout.placements for piece in holders.pieces(placement)]
        buckets = tuple(bucketed(pieces, bucket_bytes, stream=number, first=index))
        index += len(buckets)
        streams.append(Stream(alike, layout, buckets))
    if holders.ranks > 1:
        chosen = choose_senders(streams, holders, nodes)
        streams = [replace(stream, senders=senders) for stream, senders in zip(streams, chosen, strict=True)]
    return Plan(tuple(streams))


def whole_plan(source: Layout, bucket_bytes: int) -> Plan:
    """The plan for engines that take every whole tensor in the trainer's types, and publish no layout."""
    return Plan((Stream((), source, tuple(bucketed(source.placements, bucket_bytes))),))


def _classes(receivers: Mapping[Receiver, Layout]) -> Iterable[tuple[Receiver, ...]]:
    """Receivers with equal layouts; layouts that are one object are not compared again."""
    same: dict[int, list[Receiver]] = {}
    for receiver, layout in receivers.items():
        same.setdefault(id(layout), []).append(receiver)
    equal: dict[tuple[Placement, ...], list[Receiver]] = {}
    for alike in same.values():
        equal.setdefault(receivers[alike[0]].placements, []).extend(alike)
    return [tuple(alike) for alike in equal.values()]
