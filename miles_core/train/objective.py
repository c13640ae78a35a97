"""The objective: token losses are summed over the whole step, so that splitting a batch never changes a gradient."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from miles_core.errors import TrainError
from miles_core.kinds.losses import LossBatch, TokenOutputs
from miles_core.train.packing import pad_rows
from miles_core.train.reduction import TOKEN_MEAN, NamedReduction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.kinds.losses import Loss
    from miles_core.types import Estimates, StepBatch


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss with its name in errors and its factor."""

    name: str
    loss: Loss
    weight: float = 1.0


class MetricSums:
    """Metrics as sums and counts, so that micro-batches add up exactly."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, total: float, count: float) -> None:
        """Add one micro-batch's share."""
        self._sums[name] += total
        self._counts[name] += count

    def means(self) -> dict[str, float]:
        """The mean of each metric; one without any count is left out."""
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


class Objective:
    """Adds weighted token losses and reduces them over the whole step."""

    def __init__(self, losses: Sequence[WeightedLoss], reduction: NamedReduction = TOKEN_MEAN) -> None:
        self._losses = tuple(losses)
        self.reduction = reduction
        self.needs = frozenset(need for entry in losses for need in entry.loss.needs)

    def micro_loss(
        self,
        outputs: TokenOutputs,
        batch: StepBatch,
        estimates: Estimates,
        old_logprobs: NDArray[np.float32],
        rows: Sequence[int],
        *,
        weights: NDArray[np.float32],
        metrics: MetricSums,
    ) -> torch.Tensor:
        """The micro-batch's share of the step's loss: the sum of weight times token loss.

        ``weights`` are those of all tokens of the step, ``[N]``, whatever micro-batches it is split into.

        Raises:
            TrainError: if a loss is not finite, has the wrong shape, or has no gradient.
        """
        device = outputs.logprobs.device
        loss_batch = _loss_batch(batch, estimates, old_logprobs, rows, device)
        factors = torch.from_numpy(pad_rows(weights, batch.cu_seqlens, rows)).to(device)
        total = outputs.logprobs.new_zeros(())
        for entry in self._losses:
            token_loss = entry.loss.loss(outputs, loss_batch)
            if token_loss.per_token.shape != loss_batch.mask.shape:
                raise TrainError(
                    f"loss {entry.name} must return one value per token {tuple(loss_batch.mask.shape)}; "
                    f"got {tuple(token_loss.per_token.shape)}"
                )
            mask = token_loss.mask
            summed = (torch.where(mask, token_loss.per_token, 0.0) * factors).sum()
            if not torch.isfinite(summed):
                raise TrainError(f"loss {entry.name} is {summed.item()} on a micro-batch")
            total = total + entry.weight * summed
            for name, (value, count) in token_loss.metrics.items():
                metrics.add(f"train/{name}", float(value), float(count))
        if outputs.logprobs.requires_grad and not total.requires_grad:
            names = ", ".join(entry.name for entry in self._losses)
            raise TrainError(
                f"loss {names}: per_token has no gradient", remedy="Compute it from outputs, and do not detach it."
            )
        return total


def _loss_batch(
    batch: StepBatch,
    estimates: Estimates,
    old_logprobs: NDArray[np.float32],
    rows: Sequence[int],
    device: torch.device,
) -> LossBatch:
    def rows_of(flat: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(pad_rows(flat, batch.cu_seqlens, rows)).to(device)

    def maybe(flat: NDArray[np.generic] | None) -> torch.Tensor | None:
        return None if flat is None else rows_of(flat)

    return LossBatch(
        mask=rows_of(batch.loss_mask),
        advantages=rows_of(estimates.advantages),
        old_logprobs=rows_of(old_logprobs),
        rollout_logprobs=rows_of(batch.rollout_logprobs),
        reference_logprobs=maybe(batch.reference_logprobs),
        returns=maybe(estimates.returns),
    )
