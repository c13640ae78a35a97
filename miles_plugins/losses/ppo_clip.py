"""The clipped policy loss (PPO, arXiv 1707.06347; asymmetric bounds: DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import TokenLoss

if TYPE_CHECKING:
    from typing import Literal

    from miles_core.api import LossBatch, PluginContext, TokenOutputs

# exp(20) is finite in float32, and so is its gradient.
MAX_LOG_RATIO = 20.0


class PpoClipConfig(BaseModel):
    """Options of ``[[losses]] use = "ppo_clip"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.28, ge=0, description="and above 1 + clip_high")
    kl_coefficient: float = Field(0.0, ge=0, description="weight of the k3 KL to the reference model; 0 needs none")


class PpoClip:
    """``max(-ratio A, -clip(ratio, 1 - low, 1 + high) A)`` per token, ``ratio = exp(current - old)``.

    With ``kl_coefficient`` the k3 estimate of KL(current, reference), ``exp(-x) - 1 + x`` with
    ``x = current - reference``, is added (Schulman 2020).
    """

    Config = PpoClipConfig
    needs: tuple[Literal["entropy", "reference_logprobs"], ...] = ()

    def __init__(self, config: PpoClipConfig, context: PluginContext) -> None:
        del context
        self._config = config
        if config.kl_coefficient:
            self.needs = ("reference_logprobs",)

    def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        """The loss per token ``[B, T]``, with the sums of clip fraction, policy loss and KL."""
        ratio = _exp(outputs.logprobs - batch.old_logprobs)
        clipped = ratio.clamp(1 - self._config.clip_low, 1 + self._config.clip_high)
        unclipped_loss = -ratio * batch.advantages
        clipped_loss = -clipped * batch.advantages
        per_token = torch.maximum(unclipped_loss, clipped_loss)
        count = batch.mask.sum()
        metrics = {
            "pg_loss": (_sum(per_token, batch.mask), count),
            "clip_fraction": (_sum((clipped_loss > unclipped_loss).float(), batch.mask), count),
        }
        if self._config.kl_coefficient and batch.reference_logprobs is not None:
            x = outputs.logprobs - batch.reference_logprobs
            kl = _exp(-x) - 1 + x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            metrics["kl"] = (_sum(kl, batch.mask), count)
            per_token = per_token + self._config.kl_coefficient * kl
        return TokenLoss(per_token, batch.mask, metrics)


def _exp(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values.detach(), 0.0).sum()
