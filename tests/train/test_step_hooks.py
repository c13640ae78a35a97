"""Where hooks act on a training step of a real model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.batching import TrainStep
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_plugins.advantages.grpo import Grpo, GrpoConfig
from miles_plugins.losses.ppo_clip import PpoClip, PpoClipConfig

from .conftest import make_group

GROUPS = (make_group(0, 1.0, 0.0, 0.0), make_group(1, 0.0, 1.0, length=12))
TOKENS = sum(t.samples[0].trained_tokens for g in GROUPS for t in g.trajectories)


class Noting:
    """Hooks that note their calls; ``change`` is what they make of the batch."""

    def __init__(self, change=lambda batch: batch) -> None:
        self.change = change
        self.calls = []

    def batch_ready(self, step, batch):
        self.calls.append(("batch_ready", step))
        assert batch.proximal_logprobs is None, "before the forward passes"
        return self.change(batch)

    def before_logprobs(self, batch):
        self.calls.append("before_logprobs")
        assert batch.proximal_logprobs is None

    def before_train_step(self, step):
        self.calls.append(("before_train_step", step))


@pytest.fixture
def train(make_backend):
    def run(hooks, old_logprobs="proximal"):
        settings = TrainerSettings(2, 2, old_logprobs, True, 10_000, 0)
        losses = [WeightedLoss("ppo_clip", PpoClip(PpoClipConfig(), PluginContext()))]
        trainer = Trainer(make_backend(), Grpo(GrpoConfig(), PluginContext()), Objective(losses), settings, hooks=hooks)
        trainer.begin(OptimizerSettings(1e-3, max_grad_norm=1e9))
        seen = {}
        metrics = trainer.train_step(
            TrainStep(3, GROUPS, TOKENS, 1e-3), lambda batch, made: seen.update(batch=batch, made=made)
        )
        return metrics, seen["batch"], seen["made"]

    return run


def test_each_is_called_once_per_step_in_order_however_many_optimizer_steps_there_are(train) -> None:
    hooks = Noting()
    train(hooks)
    assert hooks.calls == [("batch_ready", 3), "before_logprobs", ("before_train_step", 3)]


def test_a_step_that_computes_no_logprobs_has_nothing_before_them(train) -> None:
    hooks = Noting()
    train(hooks, old_logprobs="rollout")
    assert hooks.calls == [("batch_ready", 3), ("before_train_step", 3)]


def test_what_a_hook_makes_of_the_batch_is_trained(train) -> None:
    def without_the_first_sample(batch):
        mask = batch.loss_mask.copy()
        mask[: batch.cu_seqlens[1]] = False
        return replace(batch, rewards=np.zeros_like(batch.rewards), loss_mask=mask)

    metrics, batch, made = train(Noting(without_the_first_sample))
    assert batch.rewards.tolist() == [0.0] * 5
    assert not batch.loss_mask[: batch.cu_seqlens[1]].any()
    assert batch.proximal_logprobs is not None
    assert not made.advantages.any(), "equal rewards have no advantage"
    assert metrics["train/grad_norm"] == 0
