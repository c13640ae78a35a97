"""Packing boxes into buckets of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.types import Bucket
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from miles_core.types import Placement


def bucketed(placements: Iterable[Placement], bound: int, *, stream: int = 0, first: int = 0) -> Iterator[Bucket]:
    """The placements in buckets of at most ``bound`` bytes."""
    for index, packed in enumerate(_packed(_units(placements, bound), bound), first):
        yield Bucket(index, _aligned(packed), _nbytes(packed), stream)


def _units(placements: Iterable[Placement], bound: int) -> Iterator[tuple[Placement, ...]]:
    """What must not be parted: all boxes of a parameter if they fit the bound, otherwise each."""
    parameters: dict[str, list[Placement]] = {}
    for placement in placements:
        parameters.setdefault(placement.parameter, []).append(placement)
    for boxes in parameters.values():
        if _nbytes(boxes) <= bound:
            yield tuple(boxes)
        else:
            yield from ((box,) for box in boxes)


def _packed(units: Iterable[tuple[Placement, ...]], bound: int) -> Iterator[tuple[Placement, ...]]:
    current: list[Placement] = []
    held = 0
    for unit in units:
        size = _nbytes(unit)
        if current and held + size > bound:
            yield tuple(current)
            current, held = [], 0
        current += unit
        held += size
    if current:
        yield tuple(current)


def _aligned(boxes: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """Largest elements first: back to back, each box then begins at a multiple of its element's size."""
    return tuple(sorted(boxes, key=lambda one: ITEM_BYTES[one.tensor.dtype], reverse=True))


def _nbytes(boxes: Iterable[Placement]) -> int:
    return sum(box.nbytes for box in boxes)
