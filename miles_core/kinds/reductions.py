"""``[objective] reduction``: how much each token counts in the loss of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from miles_core.types import StepBatch


class Reduction(Protocol):
    """A weight per token such that the step's loss is the sum of weight times token loss.

    Called once over the whole step, so that splitting it never changes a gradient.
    """

    def __call__(self, batch: StepBatch, mask: NDArray[np.bool_], /) -> NDArray[np.float32]:
        """Weights ``[N]``; only those where ``mask`` ``[N]`` is true count, of which there is at least one.

        ``mask`` are the trained tokens without those that a correction rejected, which ``batch.denominator_tokens``
        does not count either. With several mini-batches each has the whole weight: the host multiplies by their number.
        """
