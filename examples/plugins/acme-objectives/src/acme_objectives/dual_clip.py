"""The dual-clip policy loss (Ye et al. 2020, arXiv 1912.09729), with separate bounds (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import TokenLoss

if TYPE_CHECKING:
    from miles_core.api import LossBatch, PluginContext, TokenOutputs


class DualClip:
    """``L = max(-ratio A, -clip(ratio, 1 - low, 1 + high) A)``, and for ``A < 0`` at most ``-bound A``.

    ``ratio = exp(current - old)``. The plain clipped loss has no upper bound where the advantage is negative and the
    ratio large: one such token outweighs its whole batch. There the gradient is 0 instead.
    """

    class Config(BaseModel):
        """Options of ``[[losses]] use = "dual_clip"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
        clip_high: float = Field(0.28, ge=0, description="and above 1 + clip_high")
        bound: float = Field(3.0, gt=1, description="the loss is at most bound x |advantage|, if that is negative")

    needs = ()

    def __init__(self, config: Config, context: PluginContext) -> None:
        del context
        self._config = config

    def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        """The loss per token ``[B, T]``, with the sums of loss, clip fraction and bounded fraction."""
        # exp(20) is finite in float32, and so is its gradient.
        ratio = (outputs.logprobs - batch.old_logprobs).clamp(-20.0, 20.0).exp()
        clipped = ratio.clamp(1 - self._config.clip_low, 1 + self._config.clip_high)
        plain, pessimistic = -ratio * batch.advantages, -clipped * batch.advantages
        bounded = -self._config.bound * batch.advantages
        once = torch.maximum(plain, pessimistic)
        negative = batch.advantages < 0
        per_token = torch.where(negative, torch.minimum(once, bounded), once)
        count = batch.mask.sum()
        metrics = {
            "pg_loss": (_sum(per_token, batch.mask), count),
            "clip_fraction": (_sum((pessimistic > plain).float(), batch.mask), count),
            "dual_clip_fraction": (_sum((negative & (once > bounded)).float(), batch.mask), count),
        }
        return TokenLoss(per_token, batch.mask, metrics)


def _sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values.detach(), 0.0).sum()
