"""R3, rollout routing replay: the trainer's routers choose the experts that the rollout used.

Replayed indices choose; weights are recomputed from the current logits, so the router's gradient flows. Routes are
addressed by (sample, position, layer) and travel with the forward pass that they belong to, also into recompute.
Proof of use is taken where it counts: at the entrance of the experts module, in forward and in recompute.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.train.layout import InputLayout
    from miles_core.types import RoutingSpec, Sample


@dataclass(frozen=True, eq=False)
class Routes:
    """The routes of one micro-batch, in the traces' own small type.

    ``experts`` ``[layers, rows * width, top_k]`` are those of every cell of the input, padding included. ``proof``
    ``[layers, N, top_k]`` is what the fed tokens, in the ``cells`` of the input's layout, must arrive with. ``used``
    counts, per layer, the passes in which the experts module received exactly the samples' traces.
    """

    experts: torch.Tensor
    proof: torch.Tensor
    cells: torch.Tensor | None
    used: Counter[int] = field(default_factory=Counter)

    def to(self, device: torch.device) -> Routes:
        """The routes in the memory of ``device``; what they prove is counted together."""
        cells = None if self.cells is None else self.cells.to(device)
        return replace(self, experts=self.experts.to(device), proof=self.proof.to(device), cells=cells)

    def count_as_one(self, passes: int) -> None:
        """Make ``passes`` passes of one token each, all proven, one pass; otherwise it stays unproven."""
        for layer, proven in self.used.items():
            self.used[layer] = int(proven == passes)

    def keys(self) -> list[bytes]:
        """The routes of each fed token, ``[N]``, to compare with others'."""
        return [row.tobytes() for row in self.proof.swapaxes(0, 1).contiguous().numpy()]

    def at(self, token: int) -> Routes:
        """The routes of a pass of one fed token; what it proves is counted here. The layout has no padding."""
        rows = slice(token, token + 1)
        return replace(self, experts=self.experts[:, rows], proof=self.proof[:, rows])


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

    def routes(self, samples: Sequence[Sample], layout: InputLayout) -> Routes:
        """Lay the traces of a micro-batch out as its tokens are.

        Raises:
            RoutingError: if a sample has no trace: nothing degrades to live routing silently.
        """
        traces = _traces(samples, self._spec)
        padding = _padding(self._spec, layout.shape[0] * layout.shape[1] - layout.fed, traces.dtype)
        experts = layout.place(traces, padding)
        return Routes(_by_layer(experts), _by_layer(traces), layout.cells)

    @contextmanager
    def active(self, routes: Routes | None, *, compare: bool = False) -> Iterator[None]:
        """Replay ``routes`` in the forward passes inside; ``compare`` counts where the model's own top-k differs."""
        before = self._current, self._compare
        self._current, self._compare = routes, compare
        try:
            yield
        finally:
            self._current, self._compare = before

    def narrowed(self, routes: Routes, token: int) -> AbstractContextManager[None]:
        """Inside :meth:`active`: replay the routes of one fed token alone."""
        return self.active(routes.at(token), compare=self._compare)

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
            experts = routes.experts[index].long()
            if experts.shape[0] != logits.shape[0]:
                raise RoutingError(
                    f"layer {point.layer_id} routes {logits.shape[0]} tokens, the traces cover {experts.shape[0]}"
                )
            if self._compare:
                same = _same_sets(_fed(own, routes), _fed(experts, routes), self._spec.num_experts)
                self._mismatched += len(same) - int(same.sum())
                self._compared += len(same)
            return logits, point.weights(logits, experts), experts

        return hook

    def _experts_hook(self, index: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del module
            routes = self._current
            if routes is not None:
                received = args[1] if len(args) > 1 else kwargs["top_k_index"]
                routes.used[index] += int(torch.equal(_fed(received, routes), routes.proof[index].long()))

        return hook


def _fed(values: torch.Tensor, routes: Routes) -> torch.Tensor:
    """The rows of fed tokens, in order, without padding."""
    return values if routes.cells is None else values[routes.cells]


def _same_sets(first: torch.Tensor, second: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Whether the rows ``[N, top_k]``, without repetitions, hold the same experts, ``[N]``."""
    chosen = torch.zeros(len(first), num_experts, dtype=torch.bool, device=first.device)
    return chosen.scatter_(1, first, True).gather(1, second).all(-1)


def _traces(samples: Sequence[Sample], spec: RoutingSpec) -> NDArray[Any]:
    """The samples' traces, one after the other: ``[N, layers, top_k]``."""
    for sample in samples:
        trace = sample.routing
        if trace is None:
            raise RoutingError(
                f"sample {sample.trajectory_id} has no routing trace, but train.replay_routing is on",
                remedy="Start the engine with routed experts enabled, or set train.replay_routing = false.",
            )
        if trace.layer_ids != spec.layer_ids or trace.experts.shape[2] != spec.top_k:
            raise RoutingError(
                f"the trace of sample {sample.trajectory_id} is of layers {list(trace.layer_ids)}, top-"
                f"{trace.experts.shape[2]}; the trained model has MoE layers {list(spec.layer_ids)}, top-{spec.top_k}",
                remedy="Train on what an engine of the same model generated.",
            )
    return np.concatenate([sample.routing.experts for sample in samples if sample.routing is not None])


def _by_layer(rows: NDArray[Any]) -> torch.Tensor:
    """A copy ``[layers, rows, top_k]``: what is replayed and what proves it must not share memory."""
    return torch.from_numpy(np.array(rows.swapaxes(0, 1), order="C"))


def _padding(spec: RoutingSpec, cells: int, dtype: Any) -> NDArray[Any]:
    """Consecutive experts in turn: distinct within a row and spread evenly, so that padding never piles up."""
    turn = np.arange(cells * spec.top_k).reshape(cells, 1, spec.top_k) % spec.num_experts
    return np.repeat(turn, len(spec.layer_ids), axis=1).astype(dtype)
