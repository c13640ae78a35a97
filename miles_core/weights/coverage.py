"""How many bytes of a parameter boxes fill, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import WeightSyncError
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Parameter, Placement


def filled_bytes(parameter: Parameter, boxes: Sequence[Placement]) -> int:
    """The bytes of ``parameter`` that its ``boxes`` fill.

    Raises:
        WeightSyncError: if two of them overlap.
    """
    strided = any(box.strides is not None for box in boxes)
    overlap = _overlap_of_strided(parameter, boxes) if strided else _overlap_of_packed(boxes)
    if overlap is not None:
        raise WeightSyncError(
            f"{overlap.label} overlaps another tensor of this update in {parameter.name}",
            remedy="Plan again from this engine's layout.",
        )
    return sum(box.nbytes for box in boxes)


def _overlap_of_packed(boxes: Sequence[Placement]) -> Placement | None:
    end = 0
    for box in sorted((box for box in boxes if box.nbytes), key=lambda box: box.offset):
        if box.offset < end:
            return box
        end = box.offset + box.nbytes
    return None


def _overlap_of_strided(parameter: Parameter, boxes: Sequence[Placement]) -> Placement | None:
    size = ITEM_BYTES[parameter.dtype]
    seen = np.zeros(parameter.nbytes // size, np.bool_)
    for box in boxes:
        marks = seen[box.offset // size :]
        strides = box.strides
        if strides is None:
            cells = marks[: box.nbytes // size]
        else:
            cells = np.lib.stride_tricks.as_strided(marks, box.shape, strides)  # one byte per mark
        if cells.any():
            return box
        cells[...] = True
    return None
