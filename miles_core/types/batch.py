"""One training step's samples as flat arrays: what estimators and losses see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class StepBatch:
    """All samples of a step, concatenated: arrays have length N, the sum of the samples' lengths.

    Sample s owns ``cu_seqlens[s]:cu_seqlens[s + 1]``. A value at token t is about token t given those before
    it, so the first token of a sample has no logprob (0) and is never trained.

    * ``tokens`` int32 ``[N]``, ``loss_mask`` bool ``[N]``, ``temperatures`` float32 ``[N]``
    * ``rollout_logprobs``, and once computed ``proximal_logprobs``, ``reference_logprobs``, ``values``: float32 ``[N]``
    * ``rewards`` float64 ``[S]``; ``group_index``, ``trajectory_index`` int64 ``[S]``: samples of one agent on one task
      have the same group, and those of one agent in one episode the same trajectory
    * ``denominator_tokens``: what token-mean reductions divide by; tokens of groups that a filter dropped
      stay in it, so that a few left-over groups never get a full-size step.
    """

    cu_seqlens: NDArray[np.int64]
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    temperatures: NDArray[np.float32]
    rollout_logprobs: NDArray[np.float32]
    rewards: NDArray[np.float64]
    group_index: NDArray[np.int64]
    trajectory_index: NDArray[np.int64]
    denominator_tokens: int
    proximal_logprobs: NDArray[np.float32] | None = None
    reference_logprobs: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None

    @property
    def num_samples(self) -> int:
        """How many samples the step holds."""
        return len(self.cu_seqlens) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per sample, ``[S]``."""
        import numpy as np

        return np.diff(self.cu_seqlens)

    def per_token(self, per_sample: NDArray[Any]) -> NDArray[Any]:
        """Repeat a value per sample ``[S]`` over the sample's tokens: ``[N]``."""
        import numpy as np

        return np.repeat(per_sample, self.lengths)


@dataclass(frozen=True, eq=False)
class Estimates:
    """``advantages`` and maybe ``returns`` of an estimator, float32 ``[N]``, aligned to the step's tokens."""

    advantages: NDArray[np.float32]
    returns: NDArray[np.float32] | None = None
