"""Routing traces: the experts that the rollout used, per token, MoE layer and slot (R3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from miles_core.errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """The routing shape of one model.

    Engines send a row for each of ``num_layers`` hidden layers; ``layer_ids`` are the MoE ones among
    them, ascending.
    """

    num_layers: int
    layer_ids: tuple[int, ...]
    num_experts: int
    top_k: int


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """Expert ids ``[rows, len(layer_ids), top_k]`` in the smallest unsigned type that holds them; read-only.

    Row t holds the routing used when token t was the input, so a sequence of T tokens has T-1 rows: the
    last token was never fed. Which rows exist is structural; there is no sentinel value. A trace that was joined
    from an engine's rows has those of one layer side by side in memory: ``experts[:, i]`` is contiguous.
    """

    experts: NDArray[Any]
    layer_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        self.experts.setflags(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # numpy pickles an array that is not contiguous as another layout, element by element
        return _from_layers, (self.experts.swapaxes(0, 1), self.layer_ids)

    @property
    def rows(self) -> int:
        """How many token positions have a row."""
        return int(self.experts.shape[0])

    @classmethod
    def joined(cls, parts: Sequence[NDArray[Any]], spec: RoutingSpec) -> RoutingTrace:
        """The trace of consecutive rows; see :func:`join_rows`."""
        return cls(join_rows(parts, spec), spec.layer_ids)


def _from_layers(experts: NDArray[Any], layer_ids: tuple[int, ...]) -> RoutingTrace:
    return RoutingTrace(experts.swapaxes(0, 1), layer_ids)


def expert_dtype(num_experts: int) -> type[Any]:
    """The smallest unsigned numpy type that holds the ids of ``num_experts`` experts."""
    import numpy as np

    return np.uint8 if num_experts <= 1 << 8 else np.uint16


def empty_rows(count: int, spec: RoutingSpec) -> NDArray[Any]:
    """Room for ``count`` rows, ``[count, MoE layers, top_k]``, those of one layer side by side in memory."""
    import numpy as np

    shape = (len(spec.layer_ids), count, spec.top_k)
    rows: NDArray[Any] = np.empty(shape, expert_dtype(spec.num_experts)).swapaxes(0, 1)
    return rows


def join_rows(parts: Sequence[NDArray[Any]], spec: RoutingSpec) -> NDArray[Any]:
    """Consecutive rows ``[rows, MoE layers, top_k]`` as one array; a single part is returned as it is."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    joined, at = empty_rows(sum(map(len, filled)), spec), 0
    for part in filled:
        put_rows(joined, at, part)
        at += len(part)
    return joined


def put_rows(rows: NDArray[Any], at: int, part: NDArray[Any]) -> None:
    """Write ``part`` into ``rows`` of the same layers, top-k and type, from row ``at`` on."""
    # a token's top-k as one item: between layouts numpy then copies it whole instead of expert by expert
    item = f"V{part.shape[2] * part.itemsize}"
    rows.view(item)[at : at + len(part)] = part.view(item)


def checked_rows(wire: NDArray[Any], spec: RoutingSpec, *, first_row: int) -> NDArray[Any]:
    """The MoE layers of an engine's rows ``[rows, num_layers, top_k]``, checked, in the smallest unsigned type.

    ``wire`` holds int32 or its bits as uint32; ``first_row`` is the position of its first row, for errors. Rows of
    dense layers say nothing and are left out unread.

    Raises:
        RoutingError: if an expert id is out of range, or a token's top-k names an expert twice.
    """
    import numpy as np

    # as unsigned numbers negative ids are large: one bound finds both
    chosen = wire.view(np.uint32)[:, _columns(spec)]
    if chosen.size and chosen.max() >= spec.num_experts:
        row, layer, slot = np.argwhere(chosen >= spec.num_experts)[0]
        raise RoutingError(
            f"expert id {int(chosen[row, layer, slot].astype(np.int32))} at row {first_row + int(row)}, layer "
            f"{spec.layer_ids[layer]} is out of range: the model has {spec.num_experts} experts",
            remedy="Check that the engine serves the model that the trainer trains.",
        )
    rows: NDArray[Any] = chosen.astype(expert_dtype(spec.num_experts), order="C")
    _check_distinct(rows, spec, first_row)
    return rows


def _columns(spec: RoutingSpec) -> Any:
    """What selects the MoE layers among all: a slice, which copies nothing, where they are consecutive."""
    first, count = spec.layer_ids[0], len(spec.layer_ids)
    return slice(first, first + count) if spec.layer_ids[-1] - first == count - 1 else list(spec.layer_ids)


def _check_distinct(rows: NDArray[Any], spec: RoutingSpec, first_row: int) -> None:
    import numpy as np

    # comparing whole slots is far cheaper than sorting each token's few
    slots = np.ascontiguousarray(rows.reshape(-1, spec.top_k).T)
    twice = np.zeros(slots.shape[1], np.bool_)
    for one, other in combinations(slots, 2):
        twice |= one == other
    if twice.any():
        row, layer = divmod(int(twice.argmax()), len(spec.layer_ids))
        raise RoutingError(
            f"row {first_row + row}, layer {spec.layer_ids[layer]} names an expert twice: {rows[row, layer].tolist()}",
            remedy="Check that the engine serves the model that the trainer trains. Rows of zeros come from MoE "
            "kernels that choose experts themselves (SGLang's triton_kernels, flashinfer_trtllm and flashinfer_mxfp4): "
            "set another --moe-runner-backend.",
        )
