"""``[correction]``: factors on token losses for what separates rollout from training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.types import StepBatch


@dataclass(frozen=True, eq=False)
class Correction:
    """``weights`` float32 ``[N]`` multiply token losses; tokens where ``keep`` (bool ``[N]``) is false are rejected.

    Rejected tokens have no loss and leave the denominator; ``None`` keeps all. Both count on trained tokens only.
    ``metrics`` are reported as ``train/correction/<name>``.
    """

    weights: NDArray[np.float32]
    keep: NDArray[np.bool_] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class CorrectionFunction(Protocol):
    """Called once over the whole step, before its first update, so that no update changes the factors.

    The batch has ``rollout_logprobs`` and ``proximal_logprobs``. The other keys of the table are keyword arguments.
    """

    def __call__(self, batch: StepBatch, /) -> Correction:
        """The factors of the step's tokens."""
