"""Counts where a trainer's routes differ from the rollout's, apart from the replay that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.types import Sample


class RouteCount:
    """Watches every MoE layer: what its router chose by itself, and what its experts were given."""

    def __init__(self, points: Sequence[ReplayPoint]) -> None:
        self._own: list[torch.Tensor] = [torch.empty(0)] * len(points)
        self._used: list[torch.Tensor] = [torch.empty(0)] * len(points)
        self._differ = {"own": 0, "used": 0}
        self._compared = 0
        self._handles = []
        for index, point in enumerate(points):
            # first in line, so that it sees the router's choice before a replay replaces it
            self._handles.append(point.router.register_forward_hook(self._router_hook(index), prepend=True))
            self._handles.append(point.experts.register_forward_pre_hook(self._experts_hook(index)))

    def __enter__(self) -> RouteCount:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def add(self, samples: Sequence[Sample]) -> None:
        """Compare the forward pass that just ran on ``samples`` with their traces, as sets of experts."""
        width = max(len(sample.tokens) for sample in samples) - 1
        for row, sample in enumerate(samples):
            assert sample.routing is not None
            traced = np.sort(sample.routing.experts.astype(np.int64), -1)
            self._compared += traced.shape[0] * traced.shape[1]
            for name, layers in (("own", self._own), ("used", self._used)):
                for index, chosen in enumerate(layers):
                    mine = chosen[row * width : row * width + sample.routing.rows].sort(-1).values.numpy()
                    self._differ[name] += int((mine != traced[:, index]).any(-1).sum())

    @property
    def own_fraction(self) -> float:
        """Share of (token, layer) whose own top-k is not the rollout's."""
        return self._differ["own"] / self._compared

    @property
    def used_fraction(self) -> float:
        """Share of (token, layer) whose experts were given other routes than the rollout's."""
        return self._differ["used"] / self._compared

    def _router_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            del module, args
            self._own[index] = output[2].detach()

        return hook

    def _experts_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            del module
            self._used[index] = args[1].detach()

        return hook
