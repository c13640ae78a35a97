"""R3 on the engine's side: record every router's choice, per slot, position and MoE layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64
import torch

from miles_core.errors import RoutingError
from miles_core.types.routing import expert_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.types import RoutingSpec


class RoutingRecorder:
    """Expert ids ``[slots, length, moe_layers, top_k]``, filled through forward hooks on the routers."""

    def __init__(self, points: Sequence[ReplayPoint], spec: RoutingSpec, slots: int) -> None:
        layers = tuple(point.layer_id for point in points)
        if layers != spec.layer_ids:
            raise RoutingError(
                f"the replay points cover layers {layers}; the routing spec names {spec.layer_ids}",
                remedy="Make replay_points and routing_spec of the model bridge agree.",
            )
        self.spec = spec
        self._latest: list[torch.Tensor | None] = [None] * len(points)
        self._store: NDArray[Any] = np.zeros((slots, 0, len(points), spec.top_k), expert_dtype(spec.num_experts))
        self._hooks = [point.router.register_forward_hook(self._hook(number)) for number, point in enumerate(points)]

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions per slot."""
        slots, present, layers, top_k = self._store.shape
        if length > present:
            larger = np.zeros((slots, length, layers, top_k), self._store.dtype)
            larger[:, :present] = self._store
            self._store = larger

    def shrink(self) -> None:
        """Give the memory of all rows back."""
        self._store = self._store[:, :0].copy()

    def commit(self, slots: NDArray[np.int64], positions: NDArray[np.int64], real: torch.Tensor | None) -> None:
        """Store what the routers chose in the forward pass that just ended; ``real`` drops its padding.

        Raises:
            RoutingError: if a router did not run.
        """
        if any(indices is None for indices in self._latest):
            raise RoutingError("a router did not run in this forward pass", remedy="Check the bridge's replay_points.")
        chosen = torch.stack([indices for indices in self._latest if indices is not None], dim=1)
        self._latest = [None] * len(self._latest)
        if real is not None:
            chosen = chosen[real]
        self._store[slots, positions] = chosen.numpy()

    def rows(self, slot: int, length: int) -> NDArray[Any]:
        """A copy of the first ``length`` rows of a slot, ``[length, moe_layers, top_k]``."""
        rows: NDArray[Any] = self._store[slot, :length].copy()
        return rows

    def restore(self, slot: int, rows: NDArray[Any]) -> None:
        """Put rows recorded earlier back at the start of a slot."""
        self._store[slot, : len(rows)] = rows

    def copy_rows(self, sources: NDArray[np.int64], targets: NDArray[np.int64], length: int) -> None:
        """Copy the first ``length`` rows of slots ``sources`` to ``targets``, all at once."""
        self._store[targets, :length] = self._store[sources, :length]

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, number: int) -> Callable[..., None]:
        def record(module: torch.nn.Module, args: Any, output: tuple[torch.Tensor, ...]) -> None:
            del module, args
            self._latest[number] = output[2]

        return record


def encode_routing(rows: NDArray[Any], start: int, spec: RoutingSpec) -> str:
    """Rows from ``start`` on, for all hidden layers (dense ones zero), as base64 of C-order int32."""
    wire = np.zeros((max(0, len(rows) - start), spec.num_layers, spec.top_k), np.int32)
    wire[:, list(spec.layer_ids)] = rows[start:]
    return pybase64.b64encode(wire.tobytes()).decode("ascii")
