"""The trainer: one step's maths, independent of how it is split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from miles_core.errors import TrainError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.losses import TokenLoss
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.batching import TrainStep, collect
from miles_core.train.objective import Objective, WeightedLoss
from miles_core.train.trainer import Trainer, TrainerSettings
from miles_core.types import Estimates, Status
from miles_plugins.advantages.grpo import Grpo, GrpoConfig
from miles_plugins.losses.ppo_clip import PpoClip, PpoClipConfig
from miles_plugins.losses.sft import Sft

from .conftest import make_group, make_sample

GROUPS = (make_group(0, 1.0, 0.0, 0.0), make_group(1, 0.0, 1.0, length=12))
TRAINED = sum(t.samples[0].trained_tokens for g in GROUPS for t in g.trajectories)


def make_trainer(backend, *, losses=None, **settings) -> Trainer:
    defaults = {
        "epochs": 1,
        "mini_batches": 1,
        "old_logprobs": "proximal",
        "replay_routing": True,
        "max_tokens_per_micro_batch": 10_000,
        "seed": 0,
    }
    losses = losses or [WeightedLoss("ppo_clip", PpoClip(PpoClipConfig(), PluginContext()))]
    trainer = Trainer(
        backend, Grpo(GrpoConfig(), PluginContext()), Objective(losses), TrainerSettings(**(defaults | settings))
    )
    trainer.begin(OptimizerSettings(1e-3, max_grad_norm=1e9))
    return trainer


def step(groups=GROUPS, denominator: int = TRAINED, rate: float = 1e-3) -> TrainStep:
    return TrainStep(0, groups, denominator, rate)


@pytest.mark.parametrize("dense", [False, True])
def test_the_split_into_micro_batches_never_changes_the_step(make_backend, dense: bool) -> None:
    # With so large an eps, Adam's update is the gradient: it does not blow up the noise of one that should be zero.
    plain = OptimizerSettings(1.0, eps=1.0, max_grad_norm=1e9)
    updates = []
    for tokens in (10_000, 15):
        backend = make_backend(dense=dense)
        before = {name: parameter.detach().clone() for name, parameter in backend.parameters().items()}
        trainer = make_trainer(backend, max_tokens_per_micro_batch=tokens)
        trainer.begin(plain)
        trainer.train_step(step(rate=1.0))
        updates.append({name: parameter.detach() - before[name] for name, parameter in backend.parameters().items()})
    whole, split = updates
    scale = max(float(update.abs().max()) for update in whole.values())
    assert scale > 0
    for name, expected in whole.items():
        assert float((split[name] - expected).abs().max()) < 1e-5 * scale, name


def test_on_policy_the_ratio_is_one_and_nothing_is_clipped(make_backend) -> None:
    metrics = make_trainer(make_backend()).train_step(step())
    assert metrics["train/clip_fraction"] == 0
    # The mean of -A over trained tokens: advantages times lengths, summed by hand.
    _, batch = collect(step())
    advantages = Grpo(GrpoConfig(), PluginContext()).estimate(batch).advantages
    assert metrics["train/pg_loss"] == pytest.approx(-float(advantages[batch.loss_mask].mean()), abs=1e-5)


def test_a_loss_without_a_gradient_is_named(make_backend) -> None:
    class Detached:
        needs = ()

        def loss(self, outputs, batch):
            return TokenLoss(outputs.logprobs.detach(), batch.mask)

    with pytest.raises(TrainError, match="loss mine: per_token has no gradient"):
        make_trainer(make_backend(), losses=[WeightedLoss("mine", Detached())]).train_step(step())


def test_tokens_of_dropped_groups_stay_in_the_denominator(make_backend) -> None:
    full = make_trainer(make_backend()).train_step(step())
    tenth = make_trainer(make_backend()).train_step(step(denominator=10 * TRAINED))
    assert tenth["train/grad_norm"] == pytest.approx(full["train/grad_norm"] / 10, rel=1e-4)


def test_rollout_logprobs_as_denominator_skip_the_proximal_pass(make_backend) -> None:
    backend = make_backend()
    metrics = make_trainer(backend, old_logprobs="rollout").train_step(step())
    assert "train/rollout_kl" not in metrics
    assert metrics["train/clip_fraction"] > 0, "random rollout logprobs are far from the model's"


def test_the_setting_chooses_the_denominator_even_where_the_estimator_needs_the_proximal_pass(make_backend) -> None:
    plain = make_trainer(make_backend(), old_logprobs="rollout").train_step(step())
    trainer = make_trainer(make_backend(), old_logprobs="rollout")
    trainer._estimator.needs = ("proximal_logprobs",)
    needing = trainer.train_step(step())
    assert "train/rollout_kl" in needing
    assert needing["train/pg_loss"] == pytest.approx(plain["train/pg_loss"], rel=1e-5)


def test_a_reference_model_is_kept_only_when_the_loss_needs_it(make_backend) -> None:
    with_kl = WeightedLoss("ppo_clip", PpoClip(PpoClipConfig(kl_coefficient=0.1), PluginContext()))
    trainer = make_trainer(make_backend(dense=True), losses=[with_kl])
    # Only the reference pass runs without replay and the model has not moved: KL 0 first, above 0 later.
    first = trainer.train_step(step(rate=0.05))
    second = trainer.train_step(step(rate=0.05))
    assert first["train/kl"] == pytest.approx(0, abs=1e-6)
    assert second["train/kl"] > 1e-4
    assert make_trainer(make_backend(dense=True)).backend._reference is None


def test_learning_raises_the_logprob_of_rewarded_tokens(make_backend) -> None:
    backend = make_backend()
    trainer = make_trainer(backend, epochs=2, mini_batches=2)
    winner = GROUPS[0].trajectories[0].samples[0]
    mask = torch.tensor(winner.loss_mask.astype(bool))
    before = backend.forward([winner], replay=True).logprobs[0][mask].sum()
    for _ in range(5):
        trainer.train_step(step())
    assert backend.forward([winner], replay=True).logprobs[0][mask].sum() > before + 0.1


def test_supervised_steps_lower_the_loss(make_backend) -> None:
    backend = make_backend()
    trainer = make_trainer(backend)
    objective = Objective([WeightedLoss("sft", Sft(None, PluginContext()))])
    samples = [make_sample(10, seed=i, routed=False) for i in range(4)]
    losses = [trainer.supervised_step(samples, objective, 1e-2)["train/nll"] for _ in range(8)]
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    ("change", "message"), [({"status": Status.ABORTED}, "aborted"), ({"reward": None}, "no reward")]
)
def test_samples_that_may_not_be_trained_are_refused(make_backend, change, message: str) -> None:
    group = GROUPS[0]
    bad = replace(group.trajectories[0], samples=(replace(group.trajectories[0].samples[0], **change),))
    with pytest.raises(TrainError, match=message):
        make_trainer(make_backend()).train_step(step((replace(group, trajectories=(bad,)),)))


@pytest.mark.parametrize(
    ("advantages", "message"), [(np.zeros(3, np.float32), "got shape \\(3,\\)"), (None, "not finite")]
)
def test_an_estimator_that_returns_nonsense_is_named(make_backend, advantages, message: str) -> None:
    class Nonsense:
        needs = ()

        def estimate(self, batch):
            return Estimates(advantages if advantages is not None else np.full(len(batch.tokens), np.nan, np.float32))

    trainer = make_trainer(make_backend(dense=True))
    trainer._estimator = Nonsense()
    with pytest.raises(TrainError, match=message):
        trainer.train_step(step())


def test_a_loss_of_the_wrong_shape_or_value_is_named(make_backend) -> None:
    class Reduced:
        needs = ()

        def loss(self, outputs, batch):
            return TokenLoss(outputs.logprobs.sum(), batch.mask)

    class Infinite(Reduced):
        def loss(self, outputs, batch):
            return TokenLoss(outputs.logprobs / 0.0, batch.mask)

    for loss, message in ((Reduced(), "one value per token"), (Infinite(), "loss bad is")):
        with pytest.raises(TrainError, match=message):
            make_trainer(make_backend(dense=True), losses=[WeightedLoss("bad", loss)]).train_step(step())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(make_backend) -> None:
    backend = make_backend(dense=True)
    before = {name: p.clone() for name, p in backend.parameters().items()}
    next(backend.model.parameters()).grad = torch.full_like(next(backend.model.parameters()), torch.inf)
    with pytest.raises(TrainError, match="gradient norm is"):
        backend.optimizer_step(1e-3)
    for name, expected in before.items():
        assert torch.equal(backend.parameters()[name], expected)


def test_a_step_that_the_mini_batches_do_not_divide_trains_every_sample_once(make_backend) -> None:
    groups = tuple(make_group(index, *[float(member % 2) for member in range(6)]) for index in range(5))
    backend = make_backend()
    trainer = make_trainer(backend, mini_batches=4)
    seen: list[str] = []
    batches: list[int] = []
    forward_backward, optimizer_step = backend.forward_backward, backend.optimizer_step

    def counting(samples, loss, **options) -> None:
        seen.extend(sample.trajectory_id for sample in samples)
        forward_backward(samples, loss, **options)

    def stepping(rate: float) -> float:
        batches.append(len(seen))
        return optimizer_step(rate)

    backend.forward_backward, backend.optimizer_step = counting, stepping
    tokens = sum(t.samples[0].trained_tokens for g in groups for t in g.trajectories)
    trainer.train_step(step(groups, denominator=tokens))
    assert sorted(seen) == sorted(t.samples[0].trajectory_id for g in groups for t in g.trajectories)
    assert batches == [8, 16, 23, 30]


def with_rollout_logprobs(groups, logprobs):
    """The groups with other rollout logprobs, given per sample in order."""
    rows = iter(logprobs)

    def changed(sample):
        return replace(sample, logprobs=np.where(sample.loss_mask == 1, next(rows), 0).astype(np.float32))

    return tuple(
        replace(g, trajectories=tuple(replace(t, samples=tuple(map(changed, t.samples))) for t in g.trajectories))
        for g in groups
    )


def test_proximal_logprobs_are_those_of_the_step_and_count_towards_none(make_backend) -> None:
    backend = make_backend()
    trainer = make_trainer(backend, max_tokens_per_micro_batch=30)
    samples, _ = collect(step())
    logprobs = trainer.proximal_logprobs(samples)
    assert [len(row) for row in logprobs] == [len(sample.tokens) for sample in samples]
    for row, sample in zip(logprobs, samples, strict=True):
        alone = backend.forward([sample], replay=True).logprobs[0].numpy()
        assert np.abs(row - alone).max() < 1e-5
    backend.replay_metrics()
    trainer.proximal_logprobs(samples)
    assert backend.replay_metrics() == {}


@pytest.mark.parametrize("old_logprobs", ["proximal", "rollout"])
def test_required_equality_of_rollout_and_proximal_logprobs_holds_a_step_back(make_backend, old_logprobs) -> None:
    backend = make_backend()
    trainer = make_trainer(backend, require_on_policy=True, old_logprobs=old_logprobs)
    before = {name: tensor.clone() for name, tensor in backend.parameters().items()}
    exact = trainer.proximal_logprobs(collect(step())[0])
    equal = with_rollout_logprobs(GROUPS, exact)
    exact[0] = exact[0].copy()
    exact[0][5] = np.nextafter(exact[0][5], np.float32(0))
    with pytest.raises(TrainError, match=rf"step 0 the logprobs of 1 of {TRAINED} tokens are not those") as caught:
        trainer.train_step(step(with_rollout_logprobs(GROUPS, exact)))
    assert "deterministic = true" in str(caught.value)
    for name, tensor in backend.parameters().items():
        assert torch.equal(tensor, before[name]), name
    assert trainer.train_step(step(equal))["train/rollout_logprob_abs_diff_max"] == 0
