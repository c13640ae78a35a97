"""GRPO: advantages relative to the group (DeepSeekMath, arXiv 2402.03300)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import Estimates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.api import PluginContext, StepBatch


class GrpoConfig(BaseModel):
    """Options of ``[advantage] use = "grpo"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    divide_by_std: bool = Field(True, description="divide by the group's standard deviation (ddof 1)")
    eps: float = Field(1e-6, gt=0, description="added to the standard deviation")


class Grpo:
    """``A = (r - mean) / (std + eps)`` over the group's trajectories, the same for all tokens of a trajectory.

    The standard deviation has ddof 1. Statistics are over trajectories, so one that is split into several samples
    counts once. A group whose rewards are equal up to rounding, or of one trajectory, gets exactly 0.
    """

    Config = GrpoConfig
    needs = ()

    def __init__(self, config: GrpoConfig, context: PluginContext) -> None:
        del context
        self._config = config

    def estimate(self, step_batch: StepBatch) -> Estimates:
        """Advantages per token, float32 ``[N]``."""
        per_sample = np.zeros(step_batch.num_samples)
        for group in np.unique(step_batch.group_index):
            members = np.flatnonzero(step_batch.group_index == group)
            _, first, inverse = np.unique(step_batch.trajectory_index[members], return_index=True, return_inverse=True)
            rewards = step_batch.rewards[members][first]
            per_sample[members] = self._relative(rewards)[inverse]
        return Estimates(step_batch.per_token(per_sample).astype(np.float32))

    def _relative(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(rewards) < 2 or np.allclose(rewards, rewards[0], rtol=1e-6, atol=1e-9):
            return np.zeros(len(rewards))
        centred: NDArray[np.float64] = rewards - rewards.mean()
        if self._config.divide_by_std:
            centred = centred / (rewards.std(ddof=1) + self._config.eps)
        return centred
