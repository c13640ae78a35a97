"""Model bridges: what knows one model architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from miles_core.types import NameMapping, RoutingSpec


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """One MoE layer where routing can be replayed.

    ``router`` returns ``(logits, weights, indices)``; ``weights(logits, indices)`` recomputes what it returns as
    weights for given indices ``[tokens, top_k]``; ``experts`` takes ``(hidden, indices, weights)``.
    """

    layer_id: int
    router: torch.nn.Module
    experts: torch.nn.Module
    weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@runtime_checkable
class ModelBridge(Protocol):
    """Named by its Hugging Face architecture, such as ``Qwen3MoeForCausalLM``.

    ``mapping`` is about the modules that :meth:`build` makes. A bridge may have ``engine_mappings`` too: how engines
    name, fuse and divide the same tensors, by the naming that they report (``"sglang"``). Without one for it, an engine
    is updated by its own loader only.
    """

    mapping: NameMapping

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """The routing shape by ``config.json``; ``None`` for dense models. Needs no torch."""

    def build(self, model_path: str, *, dtype: str, init: str, seed: int) -> Any:
        """The Hugging Face model: its weights loaded (``init="pretrained"``) or drawn from ``seed`` (``"random"``)."""

    def replay_points(self, model: Any) -> Sequence[ReplayPoint]:
        """The MoE layers in order; empty for dense models."""


KIND = Kind(
    plural="model_bridges",
    singular="model bridge",
    summary="build, checkpoint names and replay points of one architecture",
    table="[model] bridge",
    protocol=ModelBridge,
    members=("mapping", "routing_spec", "build", "replay_points"),
    awaited={"routing_spec": False, "build": False, "replay_points": False},
)
