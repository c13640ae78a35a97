"""Which stretches of a bucket's bytes go where in a receiver's parameters: as few writes as there can be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.api import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from miles_core.api import Placement


@dataclass(frozen=True, slots=True)
class Reordering:
    """A box whose elements lie in another order in the parameter than in the payload, such as a transposed one.

    It begins at byte ``source`` of the payload; with its dimensions in this ``order`` it is written to byte ``target``
    of the staging memory.
    """

    source: int
    target: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    item: int


@dataclass(slots=True)
class Runs:
    """Stretches that are contiguous on both sides: ``lengths`` bytes from ``sources`` to ``offsets`` of ``parameters``.

    A source is a byte of the payload, or, from ``payload_bytes`` on, of the staging memory that follows it in thought.
    """

    payload_bytes: int
    staging_bytes: int = 0
    parameters: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    reorderings: list[Reordering] = field(default_factory=list)

    def add(self, parameter: str, offset: int, source: int, nbytes: int) -> None:
        """One more stretch, or the last one longer."""
        if self.parameters and self.parameters[-1] == parameter:
            length = self.lengths[-1]
            if self.offsets[-1] + length == offset and self.sources[-1] + length == source:
                self.lengths[-1] = length + nbytes
                return
        self.parameters.append(parameter)
        self.offsets.append(offset)
        self.sources.append(source)
        self.lengths.append(nbytes)

    def ends(self) -> dict[str, int]:
        """The byte of each parameter after the last one that is written."""
        ends: dict[str, int] = {}
        for parameter, offset, nbytes in zip(self.parameters, self.offsets, self.lengths, strict=True):
            if (end := offset + nbytes) > ends.get(parameter, 0):
                ends[parameter] = end
        return ends


def runs_of(placements: Iterable[Placement], payload_bytes: int) -> Runs:
    """The runs of boxes that lie back to back in a payload, in this order.

    Raises:
        WeightSyncError: if a box has a stride below one or begins before its parameter, or the payload another size.
    """
    runs = Runs(payload_bytes)
    source = 0
    for placement in placements:
        nbytes = placement.nbytes
        _check(placement)
        if nbytes and placement.strides is None:
            runs.add(placement.parameter, placement.offset, source, nbytes)
        elif nbytes:
            _add_strided(runs, placement, source)
        source += nbytes
    if source != payload_bytes:
        raise WeightSyncError(f"a bucket's boxes hold {source} bytes; its payload {payload_bytes}")
    return runs


def end_of(placement: Placement) -> int:
    """The byte of the parameter after the box's last one.

    Raises:
        WeightSyncError: if the box has a stride below one, or begins before the parameter.
    """
    _check(placement)
    strides = placement.strides
    if strides is None or not placement.nbytes:
        return placement.offset + placement.nbytes
    last = sum((size - 1) * stride for size, stride in zip(placement.shape, strides, strict=True))
    return placement.offset + (last + 1) * _item(placement)


def reorder(payload: memoryview, staging: NDArray[np.uint8], moves: Iterable[Reordering]) -> None:
    """Write boxes into the staging memory as they lie in their parameters."""
    for move in moves:
        kind: np.dtype[Any] = np.dtype(f"u{move.item}")
        count = math.prod(move.shape)
        box = np.frombuffer(payload, kind, count, move.source).reshape(move.shape).transpose(move.order)
        target = staging[move.target : move.target + box.nbytes].view(kind)
        target.reshape(box.shape)[...] = box


def _check(placement: Placement) -> None:
    offset, strides = placement.offset, placement.strides
    if offset < 0 or (strides is not None and min(strides, default=1) < 1):
        raise WeightSyncError(f"{placement.label} has offset {offset} and strides {strides} in its parameter")


def _add_strided(runs: Runs, placement: Placement, source: int) -> None:
    assert placement.strides is not None
    shape, strides, item = placement.shape, placement.strides, _item(placement)
    order = _order(shape, strides)
    wide = [dimension for dimension in order if shape[dimension] > 1]
    if wide != sorted(wide):
        target = -(-runs.staging_bytes // item) * item  # numpy wants its elements aligned
        runs.reorderings.append(Reordering(source, target, shape, order, item))
        runs.staging_bytes = target + placement.nbytes
        source = runs.payload_bytes + target
    block = 1  # elements that lie back to back in the parameter
    while wide and strides[wide[-1]] == block:
        block *= shape[wide.pop()]
    starts = np.zeros(1, np.int64)
    for dimension in wide:
        starts = np.add.outer(starts, np.arange(shape[dimension]) * strides[dimension]).ravel()
    nbytes = block * item
    for number, start in enumerate(starts.tolist()):
        runs.add(placement.parameter, placement.offset + start * item, source + number * nbytes, nbytes)


def _order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions from the one that moves farthest in the parameter to the nearest; those of one element first."""
    return tuple(sorted(range(len(shape)), key=lambda dimension: (shape[dimension] > 1, -strides[dimension])))


def _item(placement: Placement) -> int:
    return placement.nbytes // math.prod(placement.shape)
