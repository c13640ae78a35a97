"""Counts where a trainer's routes differ from the rollout's, apart from the replay that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.types import Sample


class RouteCount:
    """Watches every MoE layer inside ``with``: what its router chose by itself, and what its experts were given.

    ``own`` and ``used`` count, per layer, the tokens whose set of experts is not that of the rollout; ``compared`` are
    the tokens looked at. Micro-batches must be padded on the right, not packed.
    """

    def __init__(self, points: Sequence[ReplayPoint]) -> None:
        self.own: NDArray[np.int64] = np.zeros(len(points), np.int64)
        self.used: NDArray[np.int64] = np.zeros(len(points), np.int64)
        self.compared = 0
        self._points = points
        self._own: list[torch.Tensor] = [torch.empty(0)] * len(points)
        self._used: list[torch.Tensor] = [torch.empty(0)] * len(points)
        self._handles: list[Any] = []

    def __enter__(self) -> RouteCount:
        for index, point in enumerate(self._points):
            # first in line, so that it sees the router's choice before a replay replaces it
            self._handles.append(point.router.register_forward_hook(self._router_hook(index), prepend=True))
            hook = self._experts_hook(index)
            self._handles.append(point.experts.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def add(self, samples: Sequence[Sample]) -> None:
        """Compare the forward pass that just ran on ``samples`` with their traces, as sets of experts.

        Raises:
            RoutingError: if a sample has no trace.
        """
        width = max(len(sample.tokens) for sample in samples) - 1
        for row, sample in enumerate(samples):
            if sample.routing is None:
                raise RoutingError(f"sample {sample.trajectory_id} has no routing trace to compare with")
            traced = np.sort(sample.routing.experts, -1)
            self.compared += sample.routing.rows
            cells = slice(row * width, row * width + sample.routing.rows)
            for counts, layers in ((self.own, self._own), (self.used, self._used)):
                for index, chosen in enumerate(layers):
                    mine = chosen[cells].sort(-1).values.numpy()
                    counts[index] += int((mine != traced[:, index]).any(-1).sum())

    @property
    def own_fraction(self) -> float:
        """Share of (token, layer) whose own top-k is not the rollout's."""
        return float(self.own.sum()) / (self.compared * len(self.own))

    @property
    def used_fraction(self) -> float:
        """Share of (token, layer) whose experts were given other routes than the rollout's."""
        return float(self.used.sum()) / (self.compared * len(self.used))

    def _router_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            del module, args
            self._own[index] = output[2].detach().cpu()

        return hook

    def _experts_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del module
            received = args[1] if len(args) > 1 else kwargs["top_k_index"]
            self._used[index] = received.detach().cpu()

        return hook
