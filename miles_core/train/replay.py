"""R3, rollout routing replay: the trainer's routers choose the experts that the rollout used.

Replayed indices choose; weights are recomputed from the current logits, so the router's gradient flows. Routes are
addressed by (sample, position, layer) and travel with the forward pass that they belong to, also into recompute.
Proof of use is taken where it counts: at the entrance of the experts module, in forward and in recompute.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.types import RoutingSpec, Sample


@dataclass(eq=False)
class Routes:
    """The routes of one micro-batch: ``experts`` int64 ``[layers, B * T, top_k]``, ``valid`` bool ``[B * T]``.

    ``used`` counts, per layer, the passes in which the experts module received exactly the samples' traces.
    """

    experts: torch.Tensor
    valid: torch.Tensor
    proof: tuple[torch.Tensor, ...]
    used: Counter[int] = field(default_factory=Counter)


class RoutingReplay:
    """Hooks on every replay point of one model; without active routes the model runs untouched."""

    def __init__(self, points: Sequence[ReplayPoint], spec: RoutingSpec) -> None:
        if tuple(point.layer_id for point in points) != spec.layer_ids:
            raise RoutingError(
                f"the bridge replays layers {[p.layer_id for p in points]}, the config has MoE layers "
                f"{list(spec.layer_ids)}",
                remedy="Correct the bridge's replay_points or routing_spec.",
            )
        self._spec = spec
        self._current: Routes | None = None
        self._compare = False
        self._mismatched = 0
        self._compared = 0
        for index, point in enumerate(points):
            point.router.register_forward_hook(self._router_hook(index, point))
            point.experts.register_forward_pre_hook(self._experts_hook(index), with_kwargs=True)

    def routes(self, samples: Sequence[Sample]) -> Routes:
        """Lay the traces of a micro-batch out for inputs ``[B, T - 1]``, T the longest sample.

        Raises:
            RoutingError: if a sample has no trace: nothing degrades to live routing silently.
        """
        width = max(len(sample.tokens) for sample in samples) - 1
        shape = (len(samples), width, len(self._spec.layer_ids), self._spec.top_k)
        experts = _padding(self._spec, shape)
        valid = np.zeros(shape[:2], dtype=bool)
        for row, sample in enumerate(samples):
            if sample.routing is None:
                raise RoutingError(
                    f"sample {sample.trajectory_id} has no routing trace, but train.replay_routing is on",
                    remedy="Start the engine with routed experts enabled, or set train.replay_routing = false.",
                )
            experts[row, : sample.routing.rows] = sample.routing.experts
            valid[row, : sample.routing.rows] = True
        by_layer = np.ascontiguousarray(experts.reshape(-1, *shape[2:]).swapaxes(0, 1))
        return Routes(torch.from_numpy(by_layer), torch.from_numpy(valid.reshape(-1)), _proof(samples, self._spec))

    @contextmanager
    def active(self, routes: Routes | None, *, compare: bool = False) -> Iterator[None]:
        """Replay ``routes`` in the forward passes inside; ``compare`` counts where the model's own top-k differs."""
        before = self._current, self._compare
        self._current, self._compare = routes, compare
        try:
            yield
        finally:
            self._current, self._compare = before

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For ``torch.utils.checkpoint``'s ``context_fn``: recompute re-enters the routes of its forward pass."""
        return self.active(self._current, compare=self._compare), self.active(self._current)

    def verify(self, routes: Routes, *, passes: int) -> None:
        """Check the proof: every layer's experts received every sample's trace in each of ``passes`` passes.

        Raises:
            RoutingError: naming the first layer that did not.
        """
        for index, layer_id in enumerate(self._spec.layer_ids):
            if routes.used[index] != passes:
                raise RoutingError(
                    f"routing replay is not proven: the experts of layer {layer_id} used the rollout's routes in "
                    f"{routes.used[index]} of {passes} passes",
                    remedy="This is a bug of the bridge or of the backend: training stops before a wrong gradient.",
                )

    def take_metrics(self) -> Mapping[str, float]:
        """``replay/mismatch_fraction`` over (token, layer) since the last call; empty if nothing was compared."""
        compared, mismatched = self._compared, self._mismatched
        self._compared = self._mismatched = 0
        return {"replay/mismatch_fraction": mismatched / compared} if compared else {}

    def _router_hook(self, index: int, point: ReplayPoint) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
            del module, args
            routes = self._current
            if routes is None:
                return output
            logits, _, own = output
            experts = routes.experts[index]
            if experts.shape[0] != logits.shape[0]:
                raise RoutingError(
                    f"layer {point.layer_id} routes {logits.shape[0]} tokens, the traces cover {experts.shape[0]}"
                )
            if self._compare:
                differs = (own.sort(-1)[0] != experts.sort(-1)[0]).any(-1)
                self._mismatched += int((differs & routes.valid).sum())
                self._compared += int(routes.valid.sum())
            return logits, point.weights(logits, experts), experts

        return hook

    def _experts_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del module
            routes = self._current
            if routes is not None:
                received = args[1] if len(args) > 1 else kwargs["top_k_index"]
                routes.used[index] += int(torch.equal(received[routes.valid], routes.proof[index]))

        return hook


def _proof(samples: Sequence[Sample], spec: RoutingSpec) -> tuple[torch.Tensor, ...]:
    """What each layer's experts must receive on valid rows, straight from the samples: ``[rows, top_k]`` per layer."""
    traces = [sample.routing.experts for sample in samples if sample.routing is not None]
    joined = np.concatenate(traces).astype(np.int64)
    return tuple(torch.from_numpy(np.ascontiguousarray(joined[:, layer])) for layer in range(len(spec.layer_ids)))


def _padding(spec: RoutingSpec, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Consecutive experts in turn: distinct within a row and spread evenly, so that padding never piles up."""
    rows, width, layers, top_k = shape
    turn = np.arange(rows * width * top_k, dtype=np.int64).reshape(rows, width, 1, top_k) % spec.num_experts
    return np.repeat(turn, layers, axis=2)
