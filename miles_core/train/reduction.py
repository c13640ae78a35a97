"""Reductions: how much each token counts in the loss of a step; see ``[objective] reduction``.

A filter that drops groups must not give those that are left a full-size step. Hence all of these weights add up to the
share of the step's tokens that is left, ``mask.sum() / denominator_tokens``: 1 where nothing was dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.errors import TrainError
from miles_core.lib.error_text import error_text
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.kinds.reductions import Reduction
    from miles_core.types import StepBatch


def token_mean(batch: StepBatch, mask: NDArray[np.bool_], /) -> NDArray[np.float32]:
    """The mean over tokens: ``1 / denominator_tokens`` each."""
    return np.full(mask.shape, 1 / batch.denominator_tokens, np.float32)


def sequence_mean(batch: StepBatch, mask: NDArray[np.bool_], /) -> NDArray[np.float32]:
    """The mean over samples of each sample's token mean: ``share / (samples * tokens of the sample)``."""
    return _mean_of_means(batch, mask, np.arange(batch.num_samples))


def group_mean(batch: StepBatch, mask: NDArray[np.bool_], /) -> NDArray[np.float32]:
    """The mean over groups of each group's token mean: ``share / (groups * tokens of the group)``."""
    return _mean_of_means(batch, mask, batch.group_index)


def _mean_of_means(batch: StepBatch, mask: NDArray[np.bool_], owner: NDArray[Any]) -> NDArray[np.float32]:
    """``owner`` ``[S]`` numbers what each sample is part of; those without a token do not count."""
    owners = batch.per_token(owner)
    tokens = np.bincount(owners[mask], minlength=int(owner.max()) + 1)
    share = float(mask.sum()) / batch.denominator_tokens
    weights: NDArray[Any] = share / (int((tokens > 0).sum()) * np.maximum(tokens[owners], 1))
    return weights.astype(np.float32)


REDUCTIONS: dict[str, Reduction] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "group_mean": group_mean,
}
"""The built-in ones, by name."""


@dataclass(frozen=True, slots=True)
class NamedReduction:
    """A reduction and how errors call it."""

    name: str
    function: Reduction

    def weights(self, batch: StepBatch, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The weight of each token, ``[N]``; 0 outside ``mask``.

        Raises:
            TrainError: if the function raises, or does not return one finite number per token.
        """
        if not mask.any():
            return np.zeros(mask.shape, np.float32)
        try:
            found = np.asarray(self.function(frozen(batch), frozen(mask)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise TrainError(f"reduction {self.name} raised {error_text(error)}") from error
        if found.shape != mask.shape or found.dtype.kind != "f":
            raise TrainError(
                f"reduction {self.name} must return one float per token {mask.shape}; got {found.dtype} {found.shape}"
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            weights = np.where(mask, found, 0).astype(np.float32)
        if bad := int((~np.isfinite(weights)).sum()):
            raise TrainError(f"reduction {self.name}: weights must be finite; {bad} of {int(mask.sum())} are not")
        return weights


TOKEN_MEAN = NamedReduction("token_mean", token_mean)
