"""What the bridges of MoE models share: stacked experts and replay points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.api import NameMapping, Part, ReplayPoint, RoutingSpec, Rule
from miles_plugins.bridges.hugging_face import EMBEDDINGS, HuggingFaceBridge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

EXPERTS = "model.layers.{layer}.mlp.experts"


class MoeBridge(HuggingFaceBridge, ABC):
    """A model whose MoE layers have the router ``mlp.gate`` and the experts ``mlp.experts``.

    The mapping is that of most families: transformers 5 stacks the experts, which checkpoints name one by one.
    """

    mapping = NameMapping(
        rules=(
            Rule(
                f"{EXPERTS}.gate_up_proj",
                (
                    Part(f"{EXPERTS}.{{expert}}.gate_proj.weight", split=0),
                    Part(f"{EXPERTS}.{{expert}}.up_proj.weight", split=0),
                ),
                stacked=True,
            ),
            Rule(f"{EXPERTS}.down_proj", (Part(f"{EXPERTS}.{{expert}}.down_proj.weight", split=1),), stacked=True),
        ),
        tied=EMBEDDINGS,
    )
    router: ClassVar[str] = "gate"

    @abstractmethod
    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """The routing shape; ``None`` if the config makes every layer dense.

        Raises:
            ConfigError: if the config lacks or contradicts its layer or expert counts.
        """

    @abstractmethod
    def weights(self, router: Any) -> Weights:
        """``ReplayPoint.weights`` for this router: of its own indices it makes what the router makes, bit by bit."""

    def replay_points(self, model: Any) -> Sequence[ReplayPoint]:
        """The MoE layers in order."""
        blocks = [(layer_id, layer.mlp) for layer_id, layer in enumerate(model.get_decoder().layers)]
        return tuple(self._point(layer_id, block) for layer_id, block in blocks if hasattr(block, "experts"))

    def _point(self, layer_id: int, block: Any) -> ReplayPoint:
        router = getattr(block, self.router)
        return ReplayPoint(layer_id, router, block.experts, self.weights(router))
