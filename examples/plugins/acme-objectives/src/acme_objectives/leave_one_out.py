"""Leave-one-out advantages (RLOO: Ahmadian et al. 2024, arXiv 2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import Estimates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.api import PluginContext, StepBatch


class LeaveOneOut:
    """``A_i = r_i - mean(r_j, j != i)`` over the trajectories of a group, the same for all tokens of a trajectory.

    With ``standardise``, ``(A - mean(A)) / (std(A) + eps)`` over all trajectories of the step, with ddof 0
    (REINFORCE++: Hu et al. 2025, arXiv 2501.03262). A trajectory that is split into several samples counts once. A
    group of one trajectory has no baseline; its advantage is 0, and it takes no part in the statistics.
    """

    class Config(BaseModel):
        """Options of ``[advantage] use = "leave_one_out"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        standardise: bool = Field(True, description="give the advantages of a step mean 0 and standard deviation 1")
        eps: float = Field(1e-6, gt=0, description="added to the standard deviation")

    needs = ()

    def __init__(self, config: Config, context: PluginContext) -> None:
        del context
        self._config = config

    def estimate(self, step_batch: StepBatch) -> Estimates:
        """Advantages per token, float32 ``[N]``."""
        _, first, trajectory = np.unique(step_batch.trajectory_index, return_index=True, return_inverse=True)
        rewards, groups = step_batch.rewards[first], step_batch.group_index[first]
        advantages, compared = np.zeros(len(rewards)), np.zeros(len(rewards), bool)
        for group in np.unique(groups):
            members = np.flatnonzero(groups == group)
            if len(members) > 1:
                advantages[members] = _less_the_others(rewards[members])
                compared[members] = True
        if self._config.standardise and compared.any():
            spread = advantages[compared]
            advantages[compared] = (spread - spread.mean()) / (spread.std() + self._config.eps)
        return Estimates(step_batch.per_token(advantages[trajectory]).astype(np.float32))


def _less_the_others(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    # r_i minus the mean of the others is n / (n - 1) times r_i minus the mean of all.
    count = len(rewards)
    if np.ptp(rewards) < 1e-9:
        return np.zeros(count)
    centred: NDArray[np.float64] = (rewards - rewards.mean()) * (count / (count - 1))
    return centred
