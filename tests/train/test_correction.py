"""Corrections: factors on token losses, computed once before the first update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from miles_core.errors import TrainError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.corrections import Correction
from miles_core.kinds.losses import TokenLoss
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.batching import TrainStep, collect
from miles_core.train.correction import NamedCorrection, tis
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_core.types import StepBatch
from miles_plugins.advantages.grpo import Grpo, GrpoConfig

from .conftest import make_group

GROUPS = (make_group(0, 1.0, 0.0, 0.0), make_group(1, 0.0, 1.0, length=12))
TRAINED = sum(t.samples[0].trained_tokens for g in GROUPS for t in g.trajectories)


def batch_with(gap: float | np.ndarray) -> StepBatch:
    """A step whose proximal logprobs are ``gap`` above the rollout's."""
    _, batch = collect(TrainStep(0, GROUPS, TRAINED, 1e-3))
    return replace(batch, proximal_logprobs=(batch.rollout_logprobs + gap).astype(np.float32))


class PlainLoss:
    """The logprob as the loss: its gradient is the weight of each token."""

    needs = ()

    def loss(self, outputs, batch) -> TokenLoss:
        return TokenLoss(outputs.logprobs, batch.mask)


def make_trainer(backend, correction, **settings) -> Trainer:
    defaults = {
        "epochs": 1,
        "mini_batches": 1,
        "old_logprobs": "proximal",
        "replay_routing": False,
        "max_tokens_per_micro_batch": 10_000,
        "seed": 0,
    }
    trainer = Trainer(
        backend,
        Grpo(GrpoConfig(), PluginContext()),
        Objective([WeightedLoss("plain", PlainLoss())]),
        TrainerSettings(**(defaults | settings)),
        correction=correction,
    )
    trainer.begin(OptimizerSettings(1e-3, max_grad_norm=1e9))
    return trainer


def step(groups=GROUPS, denominator: int = TRAINED) -> TrainStep:
    return TrainStep(0, groups, denominator, 1e-3)


def rejecting(*rejected: int):
    """A correction that rejects the trained tokens of these samples."""

    def function(batch: StepBatch) -> Correction:
        keep = batch.per_token(~np.isin(np.arange(batch.num_samples), rejected))
        return Correction(np.ones(len(batch.tokens), np.float32), keep)

    return NamedCorrection("rejecting", function)


@pytest.mark.parametrize(("gap", "weight"), [(0.0, 1.0), (-0.5, np.exp(-0.5)), (0.5, np.exp(0.5)), (3.0, 2.0)])
def test_tis_is_the_ratio_up_to_its_cap(gap: float, weight: float) -> None:
    weights, keep, metrics = NamedCorrection("tis", tis).apply(batch_with(gap))
    mask = batch_with(gap).loss_mask
    assert weights.dtype == np.float32
    assert weights[mask] == pytest.approx(weight, rel=1e-5)
    assert not weights[~mask].any()
    assert np.array_equal(keep, mask)
    assert metrics["train/correction_weight"] == pytest.approx(weight, rel=1e-5)
    assert metrics["train/correction/clipped"] == float(weight == 2.0)
    assert metrics["train/correction_rejected"] == 0


def test_tis_of_a_huge_gap_is_the_cap_and_never_overflows() -> None:
    found = tis(batch_with(1e4), cap=5.0)
    assert found.weights[batch_with(0.0).loss_mask] == pytest.approx(5.0, rel=1e-5)


def test_the_weights_multiply_the_token_losses(make_backend) -> None:
    def doubled(batch: StepBatch) -> Correction:
        return Correction(np.full(len(batch.tokens), 2.0, np.float32))

    plain = make_trainer(make_backend(dense=True), None).train_step(step())
    twice = make_trainer(make_backend(dense=True), NamedCorrection("doubled", doubled)).train_step(step())
    assert twice["train/loss"] == pytest.approx(2 * plain["train/loss"], rel=1e-5)
    assert twice["train/grad_norm"] == pytest.approx(2 * plain["train/grad_norm"], rel=1e-4)


def test_rejected_tokens_have_no_gradient_and_leave_the_denominator(make_backend) -> None:
    """Rejecting the first group's samples trains as if only the second group had come."""
    rejected = make_trainer(make_backend(dense=True), rejecting(0, 1, 2)).train_step(step())
    second = sum(t.samples[0].trained_tokens for t in GROUPS[1].trajectories)
    alone = make_trainer(make_backend(dense=True), None).train_step(step(GROUPS[1:], second))
    assert rejected["train/loss"] == pytest.approx(alone["train/loss"], rel=1e-5)
    assert rejected["train/grad_norm"] == pytest.approx(alone["train/grad_norm"], rel=1e-4)
    assert rejected["train/correction_rejected"] == pytest.approx(1 - second / TRAINED)


def test_tokens_of_dropped_groups_stay_in_the_denominator_beside_rejected_ones(make_backend) -> None:
    second = sum(t.samples[0].trained_tokens for t in GROUPS[1].trajectories)
    full = make_trainer(make_backend(dense=True), rejecting(0, 1, 2)).train_step(step())
    less = make_trainer(make_backend(dense=True), rejecting(0, 1, 2)).train_step(step(denominator=TRAINED + second))
    assert less["train/loss"] == pytest.approx(full["train/loss"] / 2, rel=1e-5)


def test_a_step_whose_every_token_is_rejected_has_no_gradient(make_backend) -> None:
    metrics = make_trainer(make_backend(dense=True), rejecting(0, 1, 2, 3, 4)).train_step(step())
    assert (metrics["train/loss"], metrics["train/grad_norm"]) == (0, 0)
    assert metrics["train/correction_rejected"] == 1


def test_a_correction_is_asked_once_before_the_first_update_and_gets_the_proximal_pass(make_backend) -> None:
    events = []

    def asked(batch: StepBatch) -> Correction:
        assert batch.proximal_logprobs is not None
        events.append("correction")
        return Correction(np.ones(len(batch.tokens), np.float32))

    backend = make_backend(dense=True)
    backward = backend.forward_backward

    def noting(samples, loss, **options) -> None:
        events.append("backward")
        backward(samples, loss, **options)

    backend.forward_backward = noting
    trainer = make_trainer(backend, NamedCorrection("asked", asked), epochs=2, mini_batches=2, old_logprobs="rollout")
    trainer.train_step(step())
    assert events == ["correction", *["backward"] * 4]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: 1 / 0, "correction mine raised ZeroDivisionError"),
        (lambda batch: Correction([[1], [1, 2]]), "correction mine raised ValueError"),
        (
            lambda batch: Correction(np.ones(len(batch.tokens)), metrics={"x": "text"}),
            "correction mine raised ValueError",
        ),
        (lambda batch: Correction(np.full(len(batch.tokens), 1e300)), "weights must be finite"),
        (lambda batch: np.ones(len(batch.tokens)), "must return a Correction; got ndarray"),
        (lambda batch: Correction(np.ones(3)), r"weights must have one value per token \(\d+,\); got float64 \(3,\)"),
        (lambda batch: Correction(np.ones(len(batch.tokens), int)), "got int64"),
        (lambda batch: Correction(np.full(len(batch.tokens), np.inf)), "weights must be finite"),
        (lambda batch: Correction(np.ones(len(batch.tokens)), np.ones(len(batch.tokens))), "keep must be bool"),
        (lambda batch: Correction(np.ones(len(batch.tokens)), np.ones(2, bool)), r"keep must have one value per token"),
    ],
)
def test_a_correction_that_returns_nonsense_is_named(function, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        NamedCorrection("mine", function).apply(batch_with(0.0))


def test_weights_of_rejected_tokens_need_not_be_finite() -> None:
    def function(batch: StepBatch) -> Correction:
        keep = batch.rollout_logprobs > np.median(batch.rollout_logprobs[batch.loss_mask])
        return Correction(np.where(keep, 1.0, np.nan).astype(np.float32), keep)

    weights, keep, _ = NamedCorrection("mine", function).apply(batch_with(0.0))
    assert np.isfinite(weights).all()
    assert 0 < keep.sum() < TRAINED
