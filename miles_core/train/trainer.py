"""The trainer: forward passes, advantages once over the whole step, then optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import TrainError
from miles_core.train.batching import TrainStep, collect, make_batch
from miles_core.train.metrics import correction_metrics, require_on_policy
from miles_core.train.objective import MetricSums, Objective
from miles_core.train.packing import micro_batches, scatter_rows
from miles_core.train.step_hooks import NO_HOOKS
from miles_core.types import Estimates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from miles_core.kinds.advantage_estimators import AdvantageEstimator
    from miles_core.kinds.losses import TokenOutputs
    from miles_core.kinds.train_backends import OptimizerSettings, TrainBackend
    from miles_core.train.correction import NamedCorrection
    from miles_core.train.step_hooks import StepHooks
    from miles_core.types import Sample, StepBatch


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """``epochs`` passes of ``mini_batches`` optimizer steps; ``old_logprobs`` is the ratio's denominator.

    ``require_on_policy`` refuses a step whose rollout and proximal logprobs are not bit-equal.
    """

    epochs: int
    mini_batches: int
    old_logprobs: str
    replay_routing: bool
    max_tokens_per_micro_batch: int
    seed: int
    require_on_policy: bool = False


class Trainer:
    """Turns groups into optimizer steps on any train backend."""

    def __init__(
        self,
        backend: TrainBackend,
        estimator: AdvantageEstimator,
        objective: Objective,
        settings: TrainerSettings,
        hooks: StepHooks = NO_HOOKS,
        correction: NamedCorrection | None = None,
    ) -> None:
        self.backend = backend
        self._estimator = estimator
        self._objective = objective
        self._settings = settings
        self._hooks = hooks
        self._correction = correction

    def begin(self, settings: OptimizerSettings, reference: Path | None = None) -> None:
        """Start the reinforcement stage: a fresh optimizer, and the reference model where something needs it.

        The reference is the checkpoint ``reference``, or else a copy of the present weights.
        """
        self.backend.reset_optimizer(settings)
        if self._needs_reference:
            self.backend.keep_reference(reference)

    def supervised_step(
        self, samples: Sequence[Sample], objective: Objective, learning_rate: float
    ) -> dict[str, float]:
        """One optimizer step of next-token prediction on the samples' masked tokens."""
        tokens = sum(sample.trained_tokens for sample in samples)
        batch = make_batch(samples, range(len(samples)), range(len(samples)), tokens)
        zeros = np.zeros(len(batch.tokens), np.float32)
        sums = MetricSums()
        weights = objective.reduction.weights(batch, batch.loss_mask)
        run = _Pass(samples, batch, Estimates(zeros), zeros, weights, objective, sums)
        self._optimize(run, range(len(samples)), learning_rate, replay=False)
        return sums.means()

    def train_step(
        self, step: TrainStep, inspect: Callable[[StepBatch, Estimates], None] = lambda batch, estimates: None
    ) -> dict[str, float]:
        """Train on one step's groups; returns metrics by the names that trackers use.

        ``inspect`` sees the step with its forward passes, and the advantages, before the first update.

        Raises:
            TrainError: if there is nothing to train on, a value is not finite, or logprobs that must be equal are not.
        """
        samples, batch = collect(step)
        if not samples:
            raise TrainError(f"step {step.step} has no sample to train on")
        batch = self._hooks.batch_ready(step.step, batch)
        sums = MetricSums()
        batch = self._forward_passes(samples, batch, sums)
        if self._settings.require_on_policy:
            require_on_policy(batch, step.step)
        estimates = self._estimate(batch)
        inspect(batch, estimates)
        old = batch.proximal_logprobs if self._settings.old_logprobs == "proximal" else batch.rollout_logprobs
        assert old is not None, "the proximal pass ran"
        found = correction_metrics(batch)
        batch, weights = self._weights(batch, found)
        run = _Pass(samples, batch, estimates, old, weights, self._objective, sums)
        order = np.random.default_rng([self._settings.seed, step.step])
        self._hooks.before_train_step(step.step)
        for _ in range(self._settings.epochs):
            for rows in np.array_split(order.permutation(len(samples)), self._settings.mini_batches):
                if len(rows):
                    self._optimize(run, rows.tolist(), step.learning_rate, self._settings.replay_routing)
        return {**sums.means(), **found, **self.backend.replay_metrics()}

    def proximal_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Logprobs of each sample's tokens by the present weights, ``[T]`` each; 0 at its first token."""
        batch = make_batch(samples, range(len(samples)), range(len(samples)), sum(s.trained_tokens for s in samples))
        flat = self._logprobs(samples, batch, None, reference=False)
        self.backend.replay_metrics()  # what these passes counted belongs to no step
        return np.split(flat, batch.cu_seqlens[1:-1])

    @property
    def _needs_proximal(self) -> bool:
        settings = self._settings
        return (
            settings.require_on_policy
            or settings.old_logprobs == "proximal"
            or self._correction is not None
            or "proximal_logprobs" in self._estimator.needs
        )

    @property
    def _needs_reference(self) -> bool:
        return "reference_logprobs" in (*self._estimator.needs, *self._objective.needs)

    def _forward_passes(self, samples: Sequence[Sample], batch: StepBatch, sums: MetricSums) -> StepBatch:
        proximal = reference = None
        if self._needs_proximal or self._needs_reference:
            self._hooks.before_logprobs(batch)
        if self._needs_proximal:
            proximal = self._logprobs(samples, batch, sums, reference=False)
        if self._needs_reference:
            reference = self._logprobs(samples, batch, None, reference=True)
        return replace(batch, proximal_logprobs=proximal, reference_logprobs=reference)

    def _logprobs(
        self, samples: Sequence[Sample], batch: StepBatch, sums: MetricSums | None, *, reference: bool
    ) -> NDArray[np.float32]:
        flat = np.zeros(len(batch.tokens), np.float32)
        entropy = np.zeros(len(batch.tokens), np.float32)
        for rows in self._micro_batches(batch, range(len(samples))):
            outputs = self.backend.forward(
                [samples[row] for row in rows], replay=self._settings.replay_routing, reference=reference
            )
            scatter_rows(flat, batch.cu_seqlens, rows, outputs.logprobs.numpy())
            if outputs.entropy is not None:
                scatter_rows(entropy, batch.cu_seqlens, rows, outputs.entropy.numpy())
        if sums is not None:
            mask = batch.loss_mask
            sums.add("train/entropy", float(entropy[mask].sum(dtype=np.float64)), float(mask.sum()))
        return flat

    def _estimate(self, batch: StepBatch) -> Estimates:
        estimates = self._estimator.estimate(batch)
        advantages = estimates.advantages
        if advantages.shape != batch.tokens.shape or not np.isfinite(advantages).all():
            raise TrainError(
                f"the advantage estimator must return {batch.tokens.shape} finite values; got shape {advantages.shape}"
                f" with {int((~np.isfinite(advantages)).sum())} not finite"
            )
        return replace(estimates, advantages=np.where(batch.loss_mask, advantages, 0).astype(np.float32))

    def _weights(self, batch: StepBatch, metrics: dict[str, float]) -> tuple[StepBatch, NDArray[np.float32]]:
        """The batch without the tokens that the correction rejects, and each token's weight in an optimizer step."""
        factors = np.ones(batch.tokens.shape, np.float32)
        if self._correction is not None:
            factors, keep, found = self._correction.apply(batch)
            metrics.update(found)
            rejected = int(batch.loss_mask.sum()) - int(keep.sum())
            batch = replace(batch, loss_mask=keep, denominator_tokens=batch.denominator_tokens - rejected)
        weights = self._objective.reduction.weights(batch, batch.loss_mask)
        return batch, factors * weights * np.float32(self._settings.mini_batches)

    def _optimize(self, run: _Pass, rows: Sequence[int], learning_rate: float, replay: bool) -> None:
        total = 0.0
        for micro in self._micro_batches(run.batch, rows):

            def loss(outputs: TokenOutputs, micro: list[int] = micro) -> torch.Tensor:
                nonlocal total
                value = run.objective.micro_loss(
                    outputs, run.batch, run.estimates, run.old, micro, weights=run.weights, metrics=run.sums
                )
                total += float(value.detach())
                return value

            samples = [run.samples[row] for row in micro]
            self.backend.forward_backward(samples, loss, replay=replay, entropy="entropy" in run.objective.needs)
        run.sums.add("train/grad_norm", self.backend.optimizer_step(learning_rate), 1)
        run.sums.add("train/loss", total, 1)

    def _micro_batches(self, batch: StepBatch, rows: Sequence[int]) -> list[list[int]]:
        return micro_batches(batch.lengths.tolist(), rows, self._settings.max_tokens_per_micro_batch)


@dataclass(frozen=True, eq=False)
class _Pass:
    """What every optimizer step of one training step shares."""

    samples: Sequence[Sample]
    batch: StepBatch
    estimates: Estimates
    old: NDArray[np.float32]
    weights: NDArray[np.float32]
    objective: Objective
    sums: MetricSums
