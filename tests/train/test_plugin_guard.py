"""Estimators and losses: what they get is theirs to look at, and what they return is checked under their name."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import torch

from miles_core.errors import TrainError
from miles_core.kinds.losses import LossBatch, TokenLoss, TokenOutputs
from miles_core.lib.plugin_calls import CallLog
from miles_core.train.plugin_guard import GuardedEstimator, GuardedLoss
from miles_core.types import Estimates, StepBatch

N = 4
TITLE = "advantage estimator mine (acme-kit 1.2)"


def batch() -> StepBatch:
    return StepBatch(
        cu_seqlens=np.array([0, 2, 4]),
        tokens=np.arange(N, dtype=np.int32),
        loss_mask=np.array([0, 1, 0, 1], np.bool_),
        temperatures=np.ones(N, np.float32),
        rollout_logprobs=np.full(N, -1, np.float32),
        rewards=np.array([1.0, 0.0]),
        group_index=np.array([0, 0]),
        trajectory_index=np.array([0, 1]),
        denominator_tokens=2,
    )


class Estimator:
    needs = ("proximal_logprobs",)

    def __init__(self, estimate) -> None:
        self.estimate = estimate


def guarded(estimate) -> GuardedEstimator:
    return GuardedEstimator(Estimator(estimate), CallLog().of("acme-kit/mine", TITLE))


@pytest.mark.parametrize("name", ["tokens", "loss_mask", "rollout_logprobs", "rewards", "cu_seqlens", "group_index"])
def test_an_estimator_cannot_change_the_step(name: str) -> None:
    step, before = batch(), batch()

    def estimate(shown: StepBatch) -> Estimates:
        with pytest.raises(ValueError, match="read-only"):
            getattr(shown, name)[0] = 1
        return Estimates(np.zeros(N, np.float32))

    assert guarded(estimate).needs == ("proximal_logprobs",)
    guarded(estimate).estimate(step)
    assert np.array_equal(getattr(step, name), getattr(before, name))
    assert getattr(step, name).flags.writeable, "the trainer's own arrays stay as they were"


def test_what_an_estimator_returned_is_a_copy() -> None:
    kept = np.zeros(N, np.float64)
    estimates = guarded(lambda step: Estimates(kept, kept)).estimate(batch())  # type: ignore[arg-type]
    kept += 7
    assert estimates.advantages.tolist() == [0] * N
    assert estimates.advantages.dtype == np.float32
    assert estimates.returns is not None
    assert estimates.returns.tolist() == [0] * N


def raises(error: BaseException):
    def estimate(step: StepBatch) -> Estimates:
        raise error

    return estimate


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (raises(ZeroDivisionError("x")), r"estimate\(\) raised ZeroDivisionError: x"),
        (raises(SystemExit(0)), r"estimate\(\) raised SystemExit: 0"),
        (lambda step: None, "must return Estimates; got None"),
        (lambda step: Estimates(np.zeros(3, np.float32)), r"must return \(4,\) finite advantages; got shape \(3,\)"),
        (lambda step: Estimates(np.full(N, np.nan, np.float32)), "with 4 not finite"),
        (lambda step: Estimates(np.zeros(N), np.full(N, np.inf)), "finite returns"),
        (lambda step: Estimates(["a"] * N), r"raised ValueError"),
    ],
)
def test_what_goes_wrong_names_the_plugin_and_its_distribution(estimate, words: str) -> None:
    with pytest.raises(TrainError, match=words) as caught:
        guarded(estimate).estimate(batch())
    assert TITLE in caught.value.message


def test_calls_are_counted() -> None:
    log = CallLog()
    with pytest.raises(TrainError):
        GuardedEstimator(Estimator(raises(ValueError())), log.of("acme-kit/mine", TITLE)).estimate(batch())
    metrics = log.take_metrics()
    assert metrics.pop("plugins/acme-kit/mine/seconds") >= 0
    assert metrics == {"plugins/acme-kit/mine/calls": 1.0, "plugins/acme-kit/mine/failures": 1.0}


def test_a_call_that_does_not_return_is_warned_about_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = threading.Event()
    monkeypatch.setattr(logging.getLogger("miles.plugins"), "warning", lambda *words: warned.set())

    def waits_for_the_warning(step: StepBatch) -> Estimates:
        assert warned.wait(10)
        return Estimates(np.zeros(N, np.float32))

    calls = CallLog(slow_call=0.01).of("acme-kit/mine", TITLE)
    GuardedEstimator(Estimator(waits_for_the_warning), calls).estimate(batch())


class Loss:
    needs = ()

    def __init__(self, loss) -> None:
        self.loss = loss


def inputs() -> tuple[TokenOutputs, LossBatch]:
    logprobs = torch.full((1, N), -1.0, requires_grad=True)
    zeros = torch.zeros(1, N)
    return TokenOutputs(logprobs), LossBatch(torch.ones(1, N, dtype=torch.bool), zeros + 1, zeros, zeros)


def guarded_loss(loss) -> GuardedLoss:
    return GuardedLoss(Loss(loss), CallLog().of("acme-kit/mine", "loss mine (acme-kit 1.2)"))


def test_a_loss_that_writes_into_its_tensors_changes_nothing_for_others() -> None:
    def meddle(outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        result = TokenLoss(-(outputs.logprobs * batch.advantages.clone()), batch.mask.clone())
        batch.advantages.zero_()
        batch.mask.zero_()
        batch.old_logprobs.add_(5)
        outputs.logprobs.detach().fill_(3)
        return result

    outputs, shown = inputs()
    result = guarded_loss(meddle).loss(outputs, shown)
    assert shown.advantages.tolist() == [[1.0] * N]
    assert shown.mask.all()
    assert shown.old_logprobs.tolist() == [[0.0] * N]
    assert outputs.logprobs.tolist() == [[-1.0] * N]
    result.per_token.sum().backward()
    assert outputs.logprobs.grad is not None
    assert outputs.logprobs.grad.tolist() == [[-1.0] * N], "the gradient reaches the model's own logprobs"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda outputs, batch: 1 / 0, r"loss\(\) raised ZeroDivisionError"),
        (lambda outputs, batch: outputs.logprobs, "must return a TokenLoss; got tensor"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs.sum(), batch.mask), r"per_token must be \(1, 4\); got \(\)"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs, batch.mask[0]), r"mask must be \(1, 4\); got \(4,\)"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs, batch.mask.float()), "mask must be bool"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs.long(), batch.mask), "per_token must be float"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs, batch.mask, {"x": "text"}), r"each name to \(sum, count\)"),
        (lambda outputs, batch: TokenLoss(outputs.logprobs, batch.mask, None), r"each name to \(sum, count\)"),
    ],
)
def test_a_loss_that_goes_wrong_is_named(loss, words: str) -> None:
    with pytest.raises(TrainError, match=words) as caught:
        guarded_loss(loss).loss(*inputs())
    assert "loss mine (acme-kit 1.2)" in caught.value.message
