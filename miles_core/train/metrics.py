"""How far the trainer's logprobs are from the rollout's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from miles_core.types import StepBatch


def correction_metrics(batch: StepBatch) -> dict[str, float]:
    """Differences over trained tokens; empty where the proximal pass was skipped.

    * ``train/rollout_logprob_abs_diff``: mean absolute difference of proximal and rollout logprobs
    * ``train/rollout_kl``: KL(rollout, proximal) by the k3 estimator (Schulman 2020), never negative
    * ``train/ess``: effective sample size of the importance weights, as a share of the tokens
    """
    mask = batch.loss_mask
    if batch.proximal_logprobs is None or not mask.any():
        return {}
    difference = batch.proximal_logprobs[mask].astype(np.float64) - batch.rollout_logprobs[mask]
    weights = np.exp(np.clip(difference, -20, 20))
    return {
        "train/rollout_logprob_abs_diff": float(np.abs(difference).mean()),
        "train/rollout_logprob_abs_diff_max": float(np.abs(difference).max()),
        "train/rollout_kl": float((weights - 1 - np.clip(difference, -20, 20)).mean()),
        "train/ess": float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())),
    }
