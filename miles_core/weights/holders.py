"""Who in the trainer holds which box of which checkpoint tensor, and where the boxes of a receiver must be cut."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import TYPE_CHECKING, TypeAlias

from miles_core.lib.layout.cut import cut_placement, is_inside
from miles_core.types import Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from miles_core.types import Placement, Region, TensorSpec

    Sources: TypeAlias = "Layout | Sequence[Layout] | Holders"
    Cells: TypeAlias = tuple[tuple[Region, int], ...]


def holders_of(source: Sources) -> Holders:
    """Of the layouts by rank of the trainer; one layout alone is that of its only rank."""
    if isinstance(source, Holders):
        return source
    return Holders((source,) if isinstance(source, Layout) else source)


class Holders:
    """The boxes of all ranks of a trainer; ``sources`` are their layouts by rank, the same object where they agree.

    ``sets`` are the ranks that hold the same boxes, each set once; other methods say which of these by its number.
    ``unclaimed`` are parameters that no checkpoint tensor fills.
    """

    def __init__(self, sources: Sequence[Layout]) -> None:
        self.ranks = len(sources)
        self.unclaimed = {name for layout in {id(one): one for one in sources}.values() for name in layout.unclaimed}
        self.sets: list[tuple[int, ...]] = []
        self.tensors: dict[str, TensorSpec] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._sets_of: dict[tuple[str, Region], int] = {}
        self._cut: dict[tuple[str, Region], Cells] = {}
        self._boxes: dict[str, dict[Region, int]] = {}
        ranks: dict[int, list[int]] = {}
        for rank, layout in enumerate(sources):
            ranks.setdefault(id(layout), []).append(rank)
        regions: dict[str, dict[Region, list[int]]] = {}
        for alike in ranks.values():
            for placement in sources[alike[0]].placements:
                self.tensors[placement.tensor.name] = placement.tensor
                regions.setdefault(placement.tensor.name, {}).setdefault(placement.region, []).extend(alike)
        for name, boxes in regions.items():
            self._boxes[name] = {region: self._number(holders) for region, holders in boxes.items()}

    def pieces(self, placement: Placement) -> Iterator[Placement]:
        """The placement, cut where what its senders hold ends; what no one holds is left out."""
        name = placement.tensor.name
        for region, number in self._cells(name, placement.region):
            self._sets_of[name, region] = number
            yield cut_placement(placement, region)

    def set_of(self, piece: Placement) -> int:
        """The number of the set that holds what :meth:`pieces` gave."""
        return self._sets_of[piece.tensor.name, piece.region]

    def covers(self, placement: Placement) -> bool:
        """Whether every byte of the box is held by someone."""
        cells = self._cells(placement.tensor.name, placement.region)
        return sum(_elements(region) for region, _ in cells) == _elements(placement.region)

    def among(self, number: int, ranks: frozenset[int]) -> int:
        """The set of those of a set's ranks that are in ``ranks``; the set itself if none is."""
        near = [rank for rank in self.sets[number] if rank in ranks]
        return self._number(near) if near else number

    def _cells(self, name: str, box: Region) -> Cells:
        """The parts of a box, each with the set that holds it."""
        found = self._cut.get((name, box))
        if found is None:
            found = self._cut[name, box] = tuple(self._divide(self._boxes.get(name, {}), box))
        return found

    def _divide(self, boxes: Mapping[Region, int], box: Region) -> Iterator[tuple[Region, int]]:
        if len(boxes) == 1 and box in boxes:  # most are: whole experts
            yield box, boxes[box]
            return
        near = {region: number for region, number in boxes.items() if _meet(region, box) or is_inside(box, region)}
        if near and all(is_inside(box, region) for region in near):
            yield box, self._union(near.values())
            return
        for cell in product(*(_steps(dim, span, near) for dim, span in enumerate(box))):
            holding = [number for region, number in near.items() if is_inside(cell, region)]
            if holding:
                yield cell, self._union(holding)

    def _union(self, numbers: Collection[int]) -> int:
        if len(numbers) == 1:
            return next(iter(numbers))
        return self._number([rank for number in numbers for rank in self.sets[number]])

    def _number(self, ranks: Sequence[int]) -> int:
        key = tuple(sorted(set(ranks)))
        found = self._numbers.setdefault(key, len(self.sets))
        if found == len(self.sets):
            self.sets.append(key)
        return found


def _elements(region: Region) -> int:
    return math.prod(stop - start for start, stop in region)


def _meet(one: Region, other: Region) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def _steps(dim: int, span: tuple[int, int], regions: Mapping[Region, int]) -> list[tuple[int, int]]:
    """The span between the edges that regions have in it."""
    start, stop = span
    edges = {edge for region in regions for edge in region[dim] if start < edge < stop}
    return list(pairwise(sorted({start, stop, *edges})))
