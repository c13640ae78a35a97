"""Reductions: their formulas, and that splitting a step never changes a gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from miles_core.errors import TrainError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.batching import TrainStep, collect
from miles_core.train.correction import NamedCorrection, tis
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.reduction import REDUCTIONS, NamedReduction
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_core.types import StepBatch
from miles_plugins.advantages.grpo import Grpo, GrpoConfig
from miles_plugins.losses.ppo_clip import PpoClip, PpoClipConfig

from .conftest import make_group

GROUPS = (make_group(0, 1.0, 0.0, 0.0), make_group(1, 0.0, 1.0, length=12))
TRAINED = sum(t.samples[0].trained_tokens for g in GROUPS for t in g.trajectories)
_, BATCH = collect(TrainStep(0, GROUPS, TRAINED, 1e-3))


def by_reward(batch: StepBatch, mask: np.ndarray) -> np.ndarray:
    """A reduction that is no mean: samples count by their rewards."""
    return (batch.per_token(1 + batch.rewards) / mask.sum()).astype(np.float32)


ALL = {**REDUCTIONS, "custom": by_reward}


def weights(name: str, batch: StepBatch = BATCH, mask: np.ndarray | None = None) -> np.ndarray:
    return NamedReduction(name, ALL[name]).weights(batch, batch.loss_mask if mask is None else mask)


def expected(name: str, losses: np.ndarray) -> float:
    """The mean in plain words: over tokens, over samples or over groups."""
    mask = BATCH.loss_mask
    owners = {
        "token_mean": np.zeros(len(mask)),
        "sequence_mean": BATCH.per_token(np.arange(5)),
        "group_mean": BATCH.per_token(BATCH.group_index),
    }
    owner = owners[name]
    return float(np.mean([losses[mask & (owner == one)].mean() for one in np.unique(owner)]))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_each_built_in_reduction_is_the_mean_that_it_is_called(name: str) -> None:
    losses = np.random.default_rng(1).random(len(BATCH.tokens))
    assert float((weights(name) * losses).sum()) == pytest.approx(expected(name, losses), rel=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_tokens_of_dropped_groups_lessen_every_weight(name: str) -> None:
    dropped = weights(name, replace(BATCH, denominator_tokens=4 * TRAINED))
    assert dropped == pytest.approx(weights(name) / 4, rel=1e-6)
    assert dropped.sum() == pytest.approx(1 / 4, rel=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_sample_without_a_token_left_does_not_count(name: str) -> None:
    mask = BATCH.loss_mask.copy()
    mask[: BATCH.cu_seqlens[1]] = False
    left = weights(name, replace(BATCH, loss_mask=mask, denominator_tokens=int(mask.sum())), mask)
    assert left.sum() == pytest.approx(1, rel=1e-6)
    assert not left[~mask].any()


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_the_gradient_does_not_depend_on_the_split(make_backend, name: str, corrected: bool) -> None:
    gradients = [_gradient(make_backend, name, budget, corrected) for budget in (10_000, 30, 1)]
    assert gradients[0].norm() > 0
    for split in gradients[1:]:
        assert float((split - gradients[0]).norm() / gradients[0].norm()) < 1e-5


def _gradient(make_backend, name: str, budget: int, corrected: bool) -> torch.Tensor:
    backend = make_backend(dense=True)
    correction = NamedCorrection("tis", tis) if corrected else None
    trainer = _trainer(backend, ALL[name], budget, correction)
    found: list[torch.Tensor] = []

    def keep(rate: float) -> float:
        found.append(torch.cat([p.grad.flatten() for p in backend.model.parameters()]))
        return 0.0

    backend.optimizer_step = keep
    trainer.train_step(TrainStep(0, GROUPS, TRAINED, 1e-3))
    return found[0]


def _trainer(backend, reduction, budget: int, correction=None, mini_batches: int = 1) -> Trainer:
    settings = TrainerSettings(
        epochs=1,
        mini_batches=mini_batches,
        old_logprobs="proximal",
        replay_routing=False,
        max_tokens_per_micro_batch=budget,
        seed=0,
    )
    losses = [WeightedLoss("ppo_clip", PpoClip(PpoClipConfig(), PluginContext()))]
    trainer = Trainer(
        backend,
        Grpo(GrpoConfig(), PluginContext()),
        Objective(losses, NamedReduction("name", reduction)),
        settings,
        correction=correction,
    )
    trainer.begin(OptimizerSettings(1e-3, max_grad_norm=1e9))
    return trainer


def test_a_reduction_is_asked_once_for_the_whole_step(make_backend) -> None:
    asked = []

    def counting(batch: StepBatch, mask: np.ndarray) -> np.ndarray:
        asked.append(len(batch.tokens))
        return by_reward(batch, mask)

    _trainer(make_backend(dense=True), counting, 15, mini_batches=2).train_step(TrainStep(0, GROUPS, TRAINED, 1e-3))
    assert asked == [len(BATCH.tokens)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch, mask: 1 / 0, "reduction mine raised ZeroDivisionError"),
        (lambda batch, mask: np.ones(3), r"one float per token \(\d+,\); got float64 \(3,\)"),
        (lambda batch, mask: mask, r"one float per token \(\d+,\); got bool"),
        (lambda batch, mask: None, "got object"),
        (lambda batch, mask: np.full(mask.shape, 1e300), "weights must be finite"),
        (lambda batch, mask: np.full(mask.shape, np.nan), f"weights must be finite; {TRAINED} of {TRAINED} are not"),
    ],
)
def test_a_reduction_that_returns_nonsense_is_named(function, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        NamedReduction("mine", function).weights(BATCH, BATCH.loss_mask)


def test_whatever_a_reduction_raises_is_named() -> None:
    class Own(BaseException):
        pass

    def function(batch, mask):
        raise Own("x")

    with pytest.raises(TrainError, match="reduction mine raised Own: x"):
        NamedReduction("mine", function).weights(BATCH, BATCH.loss_mask)


def test_where_no_token_is_left_nothing_is_asked() -> None:
    none = np.zeros(len(BATCH.tokens), bool)
    assert not NamedReduction("mine", lambda batch, mask: 1 / 0).weights(BATCH, none).any()
