"""Corrections of the gap between rollout and training, computed once for a step; see ``[correction]``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from miles_core.errors import TrainError
from miles_core.kinds.corrections import Correction
from miles_core.lib.error_text import error_text, value_text
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.kinds.corrections import CorrectionFunction
    from miles_core.types import StepBatch


def tis(batch: StepBatch, *, cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0) -> Correction:
    """Truncated importance sampling: ``min(exp(proximal - rollout), cap)`` per token.

    Ionides 2008 (Truncated Importance Sampling); for the gap between an inference engine and a trainer, Yao et al.
    2025 (Your Efficient RL Framework Secretly Brings You Off-Policy RL Training).
    """
    assert batch.proximal_logprobs is not None, "the proximal pass ran"
    limit = math.log(cap)
    difference = batch.proximal_logprobs - batch.rollout_logprobs
    clipped = (difference > limit) & batch.loss_mask
    share = float(clipped.sum() / max(1, batch.loss_mask.sum()))
    return Correction(np.exp(np.minimum(difference, np.float32(limit))), metrics={"clipped": share})


CORRECTIONS: dict[str, CorrectionFunction] = {"tis": tis}
"""The built-in ones, by name."""


@dataclass(frozen=True, slots=True)
class NamedCorrection:
    """A correction and how errors call it."""

    name: str
    function: CorrectionFunction

    def apply(self, batch: StepBatch) -> tuple[NDArray[np.float32], NDArray[np.bool_], dict[str, float]]:
        """Weights and the mask of tokens that are trained, ``[N]`` each, and metrics.

        Raises:
            TrainError: if the function raises, or its arrays are not what they must be.
        """
        try:
            return self._applied(batch)
        except (TrainError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise TrainError(f"correction {self.name} raised {error_text(error)}") from error

    def _applied(self, batch: StepBatch) -> tuple[NDArray[np.float32], NDArray[np.bool_], dict[str, float]]:
        found = self.function(frozen(batch))
        if not isinstance(found, Correction):
            raise TrainError(f"correction {self.name} must return a Correction; got {type(found).__name__}")
        trained = batch.loss_mask
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            weights = np.where(trained, self._array(found.weights, "weights", batch), 0).astype(np.float32)
        if found.keep is not None and getattr(found.keep, "dtype", None) != np.bool_:
            raise TrainError(f"correction {self.name}: keep must be bool; got {value_text(found.keep)}")
        keep = trained if found.keep is None else trained & self._array(found.keep, "keep", batch)
        if not np.isfinite(weights[keep]).all():
            bad = int((~np.isfinite(weights[keep])).sum())
            raise TrainError(f"correction {self.name}: weights must be finite; {bad} of {int(keep.sum())} are not")
        return np.where(keep, weights, 0).astype(np.float32), keep, self._metrics(found, weights, keep, trained)

    def _array(self, values: Any, what: str, batch: StepBatch) -> NDArray[Any]:
        array = np.asarray(values)
        if array.shape != batch.tokens.shape or array.dtype.kind not in "fb":
            raise TrainError(
                f"correction {self.name}: {what} must have one value per token {batch.tokens.shape}; "
                f"got {array.dtype} {array.shape}"
            )
        return array

    def _metrics(
        self, found: Correction, weights: NDArray[Any], keep: NDArray[np.bool_], trained: NDArray[np.bool_]
    ) -> dict[str, float]:
        metrics = {f"train/correction/{name}": float(value) for name, value in found.metrics.items()}
        if keep.any():
            metrics["train/correction_weight"] = float(weights[keep].mean(dtype=np.float64))
        if trained.any():
            metrics["train/correction_rejected"] = float(1 - keep.sum() / trained.sum())
        return metrics
