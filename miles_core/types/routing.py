"""Routing traces: the experts that the rollout used, per token, MoE layer and slot (R3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import RoutingError

if TYPE_CHECKING:
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
    """Expert ids ``[rows, len(layer_ids), top_k]`` in the smallest unsigned type that holds them.

    Row t holds the routing used when token t was the input, so a sequence of T tokens has T-1 rows: the
    last token was never fed. Which rows exist is structural; there is no sentinel value.
    """

    experts: NDArray[Any]
    layer_ids: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many token positions have a row."""
        return int(self.experts.shape[0])

    @classmethod
    def empty(cls, spec: RoutingSpec) -> RoutingTrace:
        """A trace without rows."""
        import numpy as np

        shape = (0, len(spec.layer_ids), spec.top_k)
        return cls(np.zeros(shape, dtype=expert_dtype(spec.num_experts)), spec.layer_ids)

    def extended(self, wire: NDArray[Any], start: int, spec: RoutingSpec, *, tokens: int) -> RoutingTrace:
        """This trace with the rows of one engine reply appended.

        ``wire`` is ``[tokens - 1 - start, spec.num_layers, top_k]``, its first row for position ``start``.
        Rows that this trace already holds are kept: they belong to the call that sampled from them, and a
        prefix recomputed later may have been routed otherwise (radixark/miles#3307).

        Raises:
            RoutingError: if rows are missing or too many, do not abut, or hold impossible expert ids.
        """
        import numpy as np

        _check_shape(wire, start, spec, tokens)
        if start > self.rows:
            raise RoutingError(
                f"routing rows must abut: the sample has {self.rows} rows, the reply starts at row {start}",
                remedy=f"Ask the engine with routed_experts_start_len <= {self.rows}.",
            )
        fresh = wire[self.rows - start :][:, list(spec.layer_ids)]
        _check_experts(fresh, spec, first_row=self.rows)
        joined = np.concatenate([self.experts, fresh.astype(self.experts.dtype)])
        return RoutingTrace(joined, self.layer_ids)


def expert_dtype(num_experts: int) -> type[Any]:
    """The smallest unsigned numpy type that holds the ids of ``num_experts`` experts."""
    import numpy as np

    return np.uint8 if num_experts <= 1 << 8 else np.uint16


def _check_shape(wire: NDArray[Any], start: int, spec: RoutingSpec, tokens: int) -> None:
    expected = (tokens - 1 - start, spec.num_layers, spec.top_k)
    if wire.shape != expected:
        raise RoutingError(
            f"routed_experts of {tokens} tokens from row {start} on must have shape {expected} "
            f"(rows, layers, top-k); got {wire.shape}",
            remedy="Check that the engine serves the model that the trainer trains, and that no proxy cuts the reply.",
        )


def _check_experts(rows: NDArray[Any], spec: RoutingSpec, first_row: int) -> None:
    import numpy as np

    bad = (rows < 0) | (rows >= spec.num_experts)
    if bad.any():
        row, layer, _ = np.argwhere(bad)[0]
        raise RoutingError(
            f"expert id {int(rows[bad][0])} at row {first_row + int(row)}, layer {spec.layer_ids[layer]} is out "
            f"of range: the model has {spec.num_experts} experts"
        )
    ordered = np.sort(rows, axis=-1)
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
    if twice.any():
        row, layer = np.argwhere(twice)[0]
        raise RoutingError(
            f"row {first_row + int(row)}, layer {spec.layer_ids[layer]} names an expert twice: "
            f"{rows[row, layer].tolist()}"
        )
