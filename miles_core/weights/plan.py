"""Plans: which tensors travel together, decided and checked before the first byte moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from miles_core.types import Layout, TensorSpec

_SHOWN = 3
_CASTS = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types between which a cast is only a rounding; all others carry scales or meanings that a cast would lose."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The buckets of one update, in the order in which they travel."""

    buckets: tuple[Bucket, ...]

    @property
    def tensors(self) -> int:
        """How many checkpoint tensors travel."""
        return sum(len(bucket.tensors) for bucket in self.buckets)

    @property
    def nbytes(self) -> int:
        """Bytes that each receiver gets."""
        return sum(bucket.nbytes for bucket in self.buckets)


def make_plan(source: Layout, receivers: Sequence[Layout], bucket_bytes: int) -> Plan:
    """Buckets of at most ``bucket_bytes`` in the receivers' types; a tensor above the bound has a bucket of its own.

    Tensors that fill one parameter of the first receiver share a bucket where they fit the bound.

    Raises:
        WeightSyncError: if a tensor is sent by no one or claimed by no one, a parameter is filled by none, or shapes
            or types do not fit.
    """
    problems = list(_problems(source, receivers))
    if problems:
        raise WeightSyncError(
            f"the trainer's weights do not fit the engines: {_shortened(problems, '; ')}",
            remedy="Let trainer and engines build the same model with the same bridge.",
        )
    packed = _packed(_units(receivers[0], bucket_bytes), bucket_bytes)
    return Plan(
        tuple(Bucket(index, _aligned(tensors), _nbytes(tensors)) for index, tensors in enumerate(packed)),
    )


def _problems(source: Layout, receivers: Sequence[Layout]) -> Iterator[str]:
    if not receivers:
        yield "there is no engine"
    yield from _named("the trainer has parameters that no checkpoint tensor fills", source.unclaimed)
    sent = source.tensors
    for index, receiver in enumerate(receivers):
        who = f"engine {index}"
        wanted = receiver.tensors
        yield from _named(f"{who} has parameters that no checkpoint tensor fills", receiver.unclaimed)
        yield from _named(f"no one sends what {who} needs", wanted.keys() - sent.keys())
        yield from _named(f"{who} claims nothing of what the trainer sends as", sent.keys() - wanted.keys())
        yield from _named(f"{who} has other shapes or types than the trainer sends", _unfit(sent, wanted))
        first = receivers[0].tensors
        differing = (_pair(first[name], spec) for name, spec in wanted.items() if first.get(name, spec) != spec)
        yield from _named(f"{who} differs from engine 0", differing)


def _unfit(sent: Mapping[str, TensorSpec], wanted: Mapping[str, TensorSpec]) -> Iterator[str]:
    for name in sent.keys() & wanted.keys():
        one, other = sent[name], wanted[name]
        castable = one.dtype == other.dtype or {one.dtype, other.dtype} <= _CASTS
        if one.shape != other.shape or not castable:
            yield _pair(one, other)


def _pair(one: TensorSpec, other: TensorSpec) -> str:
    return f"{one.name} {one.dtype} {list(one.shape)} / {other.dtype} {list(other.shape)}"


def _named(what: str, names: Iterable[str]) -> Iterator[str]:
    found = sorted(names)
    if found:
        yield f"{what}: {len(found)} ({_shortened(found, ', ')})"


def _shortened(texts: Sequence[str], separator: str) -> str:
    rest = len(texts) - _SHOWN
    return separator.join(islice(texts, _SHOWN)) + (f"{separator}and {rest} more" if rest > 0 else "")


def _units(layout: Layout, bound: int) -> Iterator[tuple[TensorSpec, ...]]:
    """What must not be parted: all tensors of a parameter if they fit the bound, otherwise each tensor."""
    parameters: dict[str, list[TensorSpec]] = {}
    for placement in layout.placements:
        parameters.setdefault(placement.parameter, []).append(placement.tensor)
    for tensors in parameters.values():
        if _nbytes(tensors) <= bound:
            yield tuple(tensors)
        else:
            yield from ((tensor,) for tensor in tensors)


def _packed(units: Iterable[tuple[TensorSpec, ...]], bound: int) -> Iterator[tuple[TensorSpec, ...]]:
    current: tuple[TensorSpec, ...] = ()
    for unit in units:
        if current and _nbytes(current) + _nbytes(unit) > bound:
            yield current
            current = ()
        current += unit
    if current:
        yield current


def _aligned(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Largest elements first: back to back, each tensor then begins at a multiple of its element's size."""
    return tuple(sorted(tensors, key=lambda tensor: tensor.nbytes // max(math.prod(tensor.shape), 1), reverse=True))


def _nbytes(tensors: Iterable[TensorSpec]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
