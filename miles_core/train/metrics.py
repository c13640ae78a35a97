"""How far the trainer's logprobs are from the rollout's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import TrainError

if TYPE_CHECKING:
    from miles_core.types import StepBatch

ON_POLICY_REMEDY = (
    "Set deterministic = true in [engine] (an embedded one) and in [train], the same dtype and threads for both, or "
    'run.true_on_policy = "report".'
)
"""What makes rollout and proximal logprobs bit-equal."""


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


def require_on_policy(batch: StepBatch, step: int) -> None:
    """Check that the trained tokens' proximal logprobs are the rollout's, bit by bit.

    Raises:
        TrainError: with the largest difference and how many tokens differ.
    """
    assert batch.proximal_logprobs is not None, "the proximal pass ran"
    mask = batch.loss_mask
    difference = np.abs(batch.proximal_logprobs[mask].astype(np.float64) - batch.rollout_logprobs[mask])
    differing = int((difference != 0).sum())  # NaN differs from 0
    if differing:
        raise TrainError(
            f'run.true_on_policy = "require", but in step {step} the logprobs of {differing} of {len(difference)} '
            f"tokens are not those that they were sampled from; the largest difference is {difference.max():.3g}",
            remedy=ON_POLICY_REMEDY,
        )
