"""Supervised next-token loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from miles_core.api import TokenLoss

if TYPE_CHECKING:
    from miles_core.api import LossBatch, PluginContext, TokenOutputs


class Sft:
    """``-logprob`` of each token that the mask marks."""

    needs = ()

    def __init__(self, config: object, context: PluginContext) -> None:
        del config, context

    def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        """The negative log-likelihood per token ``[B, T]``."""
        nll = torch.where(batch.mask, -outputs.logprobs.detach(), 0.0).sum()
        return TokenLoss(-outputs.logprobs, batch.mask, {"nll": (nll, batch.mask.sum())})
