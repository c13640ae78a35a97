"""Losses: per-token quantities that the core reduces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

Need = Literal["entropy", "reference_logprobs"]


@dataclass(frozen=True, eq=False)
class TokenOutputs:
    """What the running forward pass gives a loss, float32 ``[B, T]``; never logits.

    ``logprobs`` carry gradient and are those of ``logits / temperature``. ``entropy`` is ``None`` unless a loss
    needs it; ``values`` is ``None`` without a value model.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class LossBatch:
    """What a loss compares with, aligned to :class:`TokenOutputs`, float32 or bool ``[B, T]``.

    ``old_logprobs`` are the ones that the importance ratio is taken against (proximal by default).
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old_logprobs: torch.Tensor
    rollout_logprobs: torch.Tensor
    reference_logprobs: torch.Tensor | None = None
    returns: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """A loss before reduction: ``per_token`` and ``mask`` ``[B, T]``.

    ``metrics`` maps a name to (sum, count), so that micro-batches and ranks add up exactly.
    """

    per_token: torch.Tensor
    mask: torch.Tensor
    metrics: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


@runtime_checkable
class Loss(Protocol):
    """A per-token loss; it never reduces, so splitting a batch never changes a gradient.

    ``needs`` names the optional inputs that it reads. The tensors that it gets are its own copies.
    """

    needs: tuple[Need, ...]

    def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        """The loss of each token."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], Loss]:
    """A factory for a plain ``fn(outputs, batch) -> TokenLoss``."""

    class FunctionLoss:
        needs: tuple[Need, ...] = ()

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
            result: TokenLoss = function(outputs, batch)
            return result

    return FunctionLoss


KIND = Kind(
    plural="losses",
    singular="loss",
    summary="a loss per token; the core reduces it",
    table="[[losses]]",
    protocol=Loss,
    members=("needs", "loss"),
    awaited={"loss": False},
    choices={"needs": get_args(Need)},
    adapt=adapt,
    function=("outputs", "batch"),
)
