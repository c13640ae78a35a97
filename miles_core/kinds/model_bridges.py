"""Model bridges: what knows one model architecture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from miles_core.types import RoutingSpec


@dataclass(frozen=True, slots=True)
class Stack:
    """A module parameter that stacks checkpoint tensors.

    ``parameter`` is a regular expression with named groups; along its first dimension it holds one entry per
    expert, and each entry is the concatenation of ``parts`` along the entry's first dimension. ``{expert}`` and the
    named groups are filled in. With one part, an entry is that tensor.
    """

    parameter: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rename:
    """A module parameter that is a checkpoint tensor of another name.

    ``parameter`` is a regular expression with named groups, which fill ``checkpoint``.
    """

    parameter: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class NameMapping:
    """How module parameters relate to checkpoint tensors; what no rule names keeps its own name.

    ``tied`` maps a parameter that shares storage to the one whose checkpoint tensor fills it, and holds where the
    model's config ties them.
    """

    stacks: tuple[Stack, ...] = ()
    tied: Mapping[str, str] | None = None
    renames: tuple[Rename, ...] = ()

    def renamed(self, parameter: str) -> str:
        """The checkpoint tensor of a parameter that is no stack."""
        for rename in self.renames:
            match = re.fullmatch(rename.parameter, parameter)
            if match is not None:
                return rename.checkpoint.format(**match.groupdict())
        return parameter


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
    """Named by its Hugging Face architecture, such as ``Qwen3MoeForCausalLM``."""

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
